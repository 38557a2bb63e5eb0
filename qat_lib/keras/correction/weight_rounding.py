"""AdaRound: round weights for the least output error of each layer, without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from qat_lib.calibrators.batches import count_samples
from qat_lib.core.ranges import greatest_integer
from qat_lib.errors import CalibrationError
from qat_lib.files.journal import Journal, fingerprint
from qat_lib.keras.correction.bias import KerasBiases
from qat_lib.keras.correction.layer_moments import LayerMoments, in_groups, out_of_groups
from qat_lib.keras.correction.lockstep import read_samples, run_lockstep
from qat_lib.keras.correction.rounding import round_weights
from qat_lib.keras.graph.layer_graph import Call, LayerGraph
from qat_lib.keras.quantizers import model_quantizers
from qat_lib.lockstep.bias import BiasCorrection, RoundingReport
from qat_lib.lockstep.steps import BothForms


def adaround(
    model: Any,
    data: Any,
    *,
    samples: int = 128,
    batch_size: int = 32,
    correct: bool = True,
    state: str | Path | None = None,
    on_layer: Callable[[int, int], None] | None = None,
) -> RoundingReport:
    """Round weights to the integers with the least output error of each layer.

    Layer by layer, the weights are rounded so that the quantized layer, with inputs from the
    preceding quantized layers, reproduces the outputs of the float layer. This is AdaRound's
    objective (Nagel et al. 2020, https://arxiv.org/abs/2004.10568), minimized by error compensation
    and coordinate descent (``qat_lib.keras.correction.rounding``). The function also chooses the
    range of each output channel, and corrects biases like ``correct_bias``. The rounded weights are
    stored in the model as floats, at multiples of their steps, so quantizers, export and engines
    reproduce them. With 4-bit weights, rounding decides whether a network is usable; with 8 bits
    the gain is small.

    Args:
        model: a quantized and calibrated Keras model, modified in place.
        data: unlabeled inputs in any form accepted by ``calibrate``.
        samples: number of samples, taken from the start of the data; fewer if their tensors would
            exceed 1 GiB. Default 128.
        batch_size: batch size for array data. Default 32.
        correct: whether to correct biases, too. Default True.
        state: file for finished layers. After an interruption, the same call with the same model
            data and arguments resumes from it; the file is not deleted at the end. Default None.
        on_layer: called with the number of finished layers and the total.

    Returns:
        A report with the error of each layer.

    Raises:
        CalibrationError: the model has no quantizer, the data is empty, or ``samples`` is below 1.
        ConfigError: the state file is damaged, or can't be written.
        UnsupportedModelError: the model has no graph of layers.
    """
    quantizers = model_quantizers(model)
    if not quantizers:
        raise CalibrationError(
            f"The model {model.name!r} has no quantizer: pass it through quantize_model and "
            "calibrate first."
        )
    graph = LayerGraph(model)
    batches = read_samples(graph, data, samples, batch_size)
    # The weights don't tell bit widths, which are settings of the quantizers.
    settings = [correct, [quantizer.get_config() for quantizer in quantizers.values()]]
    arrays = [*model.get_weights(), *tf.nest.flatten(batches)]
    journal = Journal(None if state is None else Path(state), fingerprint(settings, arrays))
    correction = BiasCorrection(graph, KerasBiases(graph), None)
    rounding = _Rounding(graph, correction.corrected if correct else set(), journal, on_layer)
    # ``visit`` runs after ``prepare`` of the same layer, so biases are corrected for the rounded
    # weights, and later layers see both changes.
    visit = correction.visit if correct else _keep
    run_lockstep(graph, batches, visit, prepare=rounding.prepare)
    return RoundingReport(
        errors=rounding.errors,
        skipped=rounding.skipped,
        shifts=correction.shifts,
        samples=sum(count_samples(batch) for batch in batches),
        resumed=rounding.resumed,
    )


def _keep(_call: Call, _outputs: tuple[BothForms, ...]) -> None:
    """Keep the outputs unchanged."""


class _Rounding:
    """Rounds the weights of each layer before its quantized form runs."""

    def __init__(
        self,
        graph: LayerGraph,
        corrected: set[str],
        journal: Journal,
        on_layer: Callable[[int, int], None] | None,
    ) -> None:
        self._corrected = corrected
        self._journal = journal
        self._on_layer = on_layer
        self.errors: dict[str, tuple[float, float]] = {}
        self.skipped: dict[str, str] = {}
        self.resumed = 0
        self._layers: set[str] = set()
        for call in graph.calls:
            if call.traits.existing is not None and call.traits.existing.weights:
                problem = _problem(graph, call)
                if problem:
                    self.skipped[call.layer] = problem
                else:
                    self._layers.add(call.layer)

    def prepare(
        self, call: Call, inputs: Sequence[BothForms], in_float: Sequence[Sequence[Any]]
    ) -> None:
        """Round the weights of a layer, or restore them from the state."""
        if call.layer not in self._layers:
            return
        self.resumed += self._journal.knows(call.layer)
        weights, largest, before, after = self._journal.result(
            call.layer, lambda: self._solve(call, inputs, in_float)
        )
        # Assign rounded weights to a layer, and their ranges to its quantizer if it stores ranges.
        variable = call.core.kernel
        variable.assign(tf.cast(out_of_groups(call.core, weights), variable.dtype))
        (quantizer,) = call.operation.weight_quantizers
        if quantizer.range_policy != "current":
            quantizer.amax = largest.reshape(quantizer.amax.shape)
        self.errors[call.layer] = (float(before), float(after))
        if self._on_layer is not None:
            self._on_layer(len(self.errors), len(self._layers))

    def _solve(
        self, call: Call, inputs: Sequence[BothForms], in_float: Sequence[Sequence[Any]]
    ) -> tuple[Any, Any, float, float]:
        moments = LayerMoments(call.core, centered=call.layer in self._corrected)
        count = sum(len(batch) for batch in inputs[0].quantized)
        for batch, outputs in zip(inputs[0].quantized, in_float, strict=True):
            moments.add(batch, outputs[0], count)
        (quantizer,) = call.operation.weight_quantizers
        # Only a single weight quantizer passes ``_problem``.
        weights = in_groups(call.core, call.core.kernel.numpy().astype("float32"))
        top = greatest_integer(quantizer.num_bits, False)
        found = round_weights(weights, moments.result(), top)
        return found.weights, found.largest, found.before, found.after


def _problem(graph: LayerGraph, call: Call) -> str:
    """Return the reason for skipping a quantized layer; empty if its weights can be rounded."""
    # Each call has its own inputs, and moments of one of them would not fit the others.
    if len(graph.calls_of(call.layer)) > 1:
        return "it is called more than once"
    if not LayerMoments.knows(call.core):
        return "how it computes is not known"
    quantizers = getattr(call.operation, "weight_quantizers", [])
    if len(quantizers) != 1 or any(getattr(call.operation, "input_quantizers", [])):
        return "its quantizers are its own"
    if quantizers[0].pair_axis is not None:
        return "its range covers pairs of weights, which rounding would change"
    groups, _, outputs = in_groups(call.core, call.core.kernel.numpy()).shape
    if quantizers[0].amax.size != groups * outputs or not quantizers[0].enabled:
        return "its weights have no range for each output channel"
    return ""
