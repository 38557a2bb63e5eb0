"""What the planner knows of an operation, whichever framework it is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qat_lib.graph.roles import Role

Weights = Mapping[str, tuple[int, ...] | None]
"""Names of weights, each with the axes that keep a range of their own; None = one range."""
WIDE_WINDOW = 16
"""Values from which on a pooling's window is wide. A percentile of 99.99 costs the maxima of 4
values nothing, of 16 values 3 dB of the signal to the noise (normal and Laplace), of 576 values 17
to 21 dB."""


def _no_weights() -> Weights:
    return {}


@dataclass(frozen=True, kw_only=True)
class Support:
    """What can be quantized of an operation, and what is by default.

    Attributes:
        quantize_input: whether its inputs are quantized by default.
        quantize_weight: whether its weights are quantized by default.
        plan_weights: gives the weights that can be quantized. Default: there are none.
        internal: names of the tensors inside that are quantized with the inputs.
        pairs: which axis of a weight counts its input channels, two of whose products a CPU
            without VNNI adds in 16 bits: the ``"last"`` or the ``"first"`` one without a range of
            its own; ``"unknown"`` where later steps reorder them; None = products of different
            channels are not added (depthwise).
    """

    quantize_input: bool = False
    quantize_weight: bool = False
    plan_weights: Callable[[], Weights] = _no_weights
    internal: tuple[str, ...] = ()
    pairs: Literal["last", "first", "unknown"] | None = "last"


@dataclass(frozen=True, kw_only=True)
class ExistingQuantizers:
    """Quantizers that an operation has before it is planned.

    Attributes:
        inputs: numbers of the inputs that it quantizes as whole tensors.
        weights: whether it quantizes weights.
        quantizer: the quantizer, where the operation itself is one; it has ``num_bits``,
            ``unsigned``, ``calibrator`` and ``range_policy``.
    """

    inputs: tuple[int, ...] = ()
    weights: bool = False
    quantizer: Any = None


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of an operation as configured in the model.

    Attributes:
        class_name: the name of its class or function.
        classes: what an entry of a spec can call it by class: its class and the bases of it, or
            names.
        kind: its name in the table of roles, that of the Keras layer where there is one.
        roles: its roles by the table, without those that its configuration takes from it.
        activation: the activation function that it is, as ``"relu6"``; None = it is no activation.
        own_activation: the activation function that a weighted operation applies itself.
        is_input: whether it is an input of the model.
        is_layer: whether it is a layer or module, rather than a function.
        support: what can be quantized of it; None = it has to be taught.
        existing: quantizers that it has already; None = none.
        inside: names of weighted layers inside that run in float with it.
        obstacle: why it can't be quantized, in words; empty = nothing says so.
    """

    class_name: str
    classes: tuple[Any, ...] = ()
    kind: str = ""
    roles: frozenset[Role] = frozenset()
    activation: str | None = None
    own_activation: str | None = None
    is_input: bool = False
    is_layer: bool = True
    support: Support | None = None
    existing: ExistingQuantizers | None = None
    inside: tuple[str, ...] = ()
    obstacle: str = ""

    @property
    def is_identity(self) -> bool:
        """Whether it passes its one input on unchanged at inference."""
        return "identity" in self.roles

    @property
    def preserves_range(self) -> bool:
        """Whether each output is a value of the only input, or zero."""
        return "range preserving" in self.roles

    @property
    def is_weighted(self) -> bool:
        """Whether a kernel with weights makes the output: convolution, Dense, attention."""
        return "weighted" in self.roles or "attention" in self.roles

    @property
    def quantizer(self) -> Any:
        """The quantizer that it is; None for other operations."""
        return None if self.existing is None else self.existing.quantizer

    @property
    def is_quantizer(self) -> bool:
        """Whether it is a quantizer itself."""
        return self.quantizer is not None

    @property
    def is_wrapped(self) -> bool:
        """Whether it is a layer or module that was quantized before."""
        return self.existing is not None and self.quantizer is None

    @property
    def quantized_inputs(self) -> tuple[int, ...]:
        """Numbers of the inputs that it quantizes already, as whole tensors."""
        return () if self.existing is None else self.existing.inputs

    def weights(self) -> Weights:
        """Return the quantizable weights, with the axes that keep a range."""
        return {} if self.support is None else self.support.plan_weights()
