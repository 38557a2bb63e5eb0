"""Helpers for quantization-aware training loops in PyTorch, like ``qat_lib.keras.training``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from qat_lib.core.moving_average import check_decay, decay_at
from qat_lib.core.oscillation import OscillationTracker
from qat_lib.core.ranges import integer_bounds
from qat_lib.errors import CalibrationError
from qat_lib.torch.naming import model_quantizers


def freeze_batch_norm(module: nn.Module) -> None:
    """Freeze the statistics and parameters of every batch norm.

    Batch norms then normalize by their running statistics. ``module.train()`` reactivates the
    statistics, so call this function after it.

    Examples:
        >>> network = nn.Sequential(nn.BatchNorm1d(2)).train()
        >>> freeze_batch_norm(network)
        >>> network[0].training
        False
    """
    for norm in batch_norms(module):
        norm.eval()
        for parameter in norm.parameters():
            parameter.requires_grad_(False)


def reestimate_batch_norm(
    module: nn.Module, data: Iterable[Any], *, batches: int | None = None
) -> int:
    """Remeasure the statistics of every batch norm, in place.

    The new statistics are the mean over all batches; weights and ranges do not change.

    Args:
        module: a module, quantized or not.
        data: batches of inputs, or tuples or lists with the inputs first. Use training data without
            augmentation, in batches at least as large as in training.
        batches: number of batches; None (default): all.

    Returns:
        The number of measured batch norms.

    Raises:
        CalibrationError: the data are empty.
    """
    norms = [norm for norm in batch_norms(module) if norm.track_running_stats]
    if not norms:
        return 0
    count = 0
    # Training mode would also update tracked ranges.
    with _measuring(module, norms), _ranges_frozen(module), torch.no_grad():
        for batch in islice(data, batches):
            module(batch[0] if isinstance(batch, (tuple, list)) else batch)
            count += 1
        if not count:
            raise CalibrationError("Expected at least one batch of data. Received none.")
    return len(norms)


def freeze_ranges(module: nn.Module) -> None:
    """Freeze all tracked and learned ranges.

    Ranges of weights with the policy ``"current"`` still follow their weights.
    """
    for quantizer in model_quantizers(module).values():
        quantizer.freeze()
        for parameter in quantizer.parameters():
            parameter.requires_grad_(False)


def range_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the learned ranges of a model.

    Put them into a separate parameter group of the optimizer, without weight decay.
    """
    found: list[nn.Parameter] = []
    for quantizer in model_quantizers(module).values():
        found.extend(quantizer.parameters())
    return found


class WeightOscillation:
    """Find oscillating quantized weights; freeze them on request.

    Call ``step()`` after each step of the optimizer. See ``qat_lib.core.oscillation``.

    Args:
        module: a quantized module.
        freeze_above: minimum frequency of oscillation, in (0, 1], for freezing a weight at its most
            frequent integer; None (default): measure only. Computed weights, such as an LSTM's
            joined weights, are measured only. FP8 weights are ignored.
    """

    def __init__(self, module: nn.Module, *, freeze_above: float | None = None) -> None:
        self._tracker = OscillationTracker(freeze_above=freeze_above)
        self._quantizers: dict[str, Any] = {}
        for name, quantizer in model_quantizers(module).items():
            has_integers = isinstance(quantizer.num_bits, int)
            if quantizer.enabled and has_integers and quantizer.weight is not None:
                self._quantizers[name] = quantizer
        self._tracker.observe(self._integers())

    @property
    def shares(self) -> Mapping[str, float]:
        """Share of oscillating weights by quantizer, in [0, 1]."""
        return self._tracker.shares()

    @property
    def frozen_shares(self) -> Mapping[str, float]:
        """Share of frozen weights by quantizer, in [0, 1]."""
        return self._tracker.frozen_shares()

    @torch.no_grad()
    def step(self) -> None:
        """Record a step, and restore frozen weights to their integers."""
        self._tracker.observe(self._integers())
        for name, quantizer in self._quantizers.items():
            weight, found = quantizer.weight, self._tracker.frozen(name)
            if found is None or not isinstance(weight, nn.Parameter):
                continue
            mask, integers = (torch.from_numpy(each).to(weight.device) for each in found)
            weight.copy_(torch.where(mask, (integers * quantizer.scale).to(weight), weight))

    def get_state(self) -> dict[str, Any]:
        """Return the state, to continue in another process."""
        return self._tracker.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from ``get_state``."""
        self._tracker.set_state(state)

    def _integers(self) -> dict[str, np.ndarray]:
        found = {}
        for name, quantizer in self._quantizers.items():
            low, high = integer_bounds(
                quantizer.num_bits, quantizer.narrow_range, quantizer.unsigned
            )
            ratio = quantizer.weight.detach().float() / quantizer.scale
            found[name] = ratio.round().clamp(low, high).cpu().numpy()
        return found


class WeightAverage:
    """Average the trained weights over the steps of a training.

    Call ``step()`` after each step of the optimizer; see ``qat_lib.keras.training.WeightAverage``.

    Args:
        module: a module in training.
        decay: weight of the past, in [0, 1). Default 0.99, about the last 100 steps.

    Raises:
        SpecError: ``decay`` is out of its range.
    """

    def __init__(self, module: nn.Module, decay: float = 0.99) -> None:
        check_decay(decay)
        self._decay, self._steps = decay, 0
        self._weights = [p for p in module.parameters() if p.requires_grad]
        self._averages = [p.detach().clone() for p in self._weights]

    @torch.no_grad()
    def step(self) -> None:
        """Add the weights after a step to the averages."""
        self._steps += 1
        share = 1.0 - decay_at(self._decay, self._steps)
        for average, weight in zip(self._averages, self._weights, strict=True):
            average.lerp_(weight, share)

    @torch.no_grad()
    def finish(self) -> None:
        """Set the weights to their averages."""
        for weight, average in zip(self._weights, self._averages, strict=True):
            weight.copy_(average)

    def get_state(self) -> dict[str, Any]:
        """Return the averages and the number of steps, to continue in another process."""
        averages = [average.float().cpu().numpy().copy() for average in self._averages]
        return {"steps": self._steps, "averages": averages}

    @torch.no_grad()
    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state from ``get_state``."""
        self._steps = state["steps"]
        for average, value in zip(self._averages, state["averages"], strict=True):
            average.copy_(torch.from_numpy(value))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Set the weights to their averages within the block."""
        before = [weight.detach().clone() for weight in self._weights]
        self.finish()
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, value in zip(self._weights, before, strict=True):
                    weight.copy_(value)


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """Return every batch norm of a module, at any depth."""
    return [part for part in module.modules() if isinstance(part, _BatchNorm)]


@contextmanager
def _measuring(module: nn.Module, norms: list[_BatchNorm]) -> Iterator[None]:
    """Set running statistics to the mean over all batches within the block."""
    # Per module: parts may be frozen in inference mode.
    modes = {part: part.training for part in module.modules()}
    momenta = [norm.momentum for norm in norms]
    module.train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # PyTorch: a cumulative average over all batches
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for part, mode in modes.items():
            part.training = mode


@contextmanager
def _ranges_frozen(module: nn.Module) -> Iterator[None]:
    """Stop updates of all ranges of a model within the block."""
    moving = [quantizer for quantizer in model_quantizers(module).values() if not quantizer.frozen]
    for quantizer in moving:
        quantizer.freeze()
    try:
        yield
    finally:
        for quantizer in moving:
            quantizer.unfreeze()
