"""Candidate placements with some layers in float, and their metric values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.core.plan import QuantizationPlan
from qat_lib.core.spec import LayerConfig, QuantizationSpec
from qat_lib.custom_qdq_cases.fusion import chain_root, is_addition
from qat_lib.files.journal import Journal
from qat_lib.keras.apply.rebuild import apply_plan
from qat_lib.keras.correction.lockstep import read_samples
from qat_lib.keras.diagnosis.effects import Switchboard
from qat_lib.keras.folding import folded_weights
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.keras.structure import pack_inputs
from qat_lib.optimization.metrics import Measure, Metric, Outputs, choose_measure, effect
from qat_lib.ptq import PtqRecipe

Floats = frozenset[str]
"""Names of the layers in float."""

_RANKING_SAMPLES = 32


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A spec with some layers in float, and its plan.

    Attributes:
        spec: the spec.
        plan: the resulting plan.
        splits: (layer in float, addition) of each residual block with a lost fusion: the addition
            still reads a tensor quantized for the fused kernel.
    """

    spec: QuantizationSpec
    plan: QuantizationPlan
    splits: tuple[tuple[str, str], ...] = ()


class Candidates:
    """Placements of one model, each quantized and measured once.

    Args:
        model: the float model.
        calibration: calibration data.
        inputs: inputs to measure the metric on, ``(samples, ...)``.
        recipe: quantization recipe for each placement.
        base: entries common to all placements.
        journal: journal of the measured values.
    """

    def __init__(
        self,
        model: Any,
        calibration: Any,
        inputs: np.ndarray,
        *,
        recipe: PtqRecipe,
        base: QuantizationSpec,
        journal: Journal,
    ) -> None:
        self.model = recipe.prepare(model, calibration).model
        self.recipe, self.base = recipe, base
        self._calibration, self._inputs, self._journal = calibration, inputs, journal
        self._graph = LayerGraph(self.model)
        # Of the given model: ``recipe.prepare`` may have equalized its copy.
        self.reference = _predict(model, inputs)
        self.evaluations = 0

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers with quantized weights, in the order of the model."""
        found: dict[str, None] = {}
        for entry in self.placement(frozenset()).plan.by_kind("weight"):
            found[entry.tensor.rpartition("/")[0]] = None
        return tuple(found)

    def placement(self, floats: Floats) -> Placement:
        """Return the placement with the given layers in float.

        Additions fused into kernels of these layers are put in float as well, if this avoids
        splits.
        """
        plain = self._planned(floats)
        if not plain.splits:
            return plain
        # Without its fused kernel, the addition needs no INT8 input.
        added = {addition for _, addition in plain.splits}
        whole = self._planned(floats, sorted(added))
        return whole if len(whole.splits) < len(plain.splits) else plain

    def _planned(self, floats: Floats, additions: Iterable[str] = ()) -> Placement:
        entries = []
        for name in (*(layer for layer in self._names(floats)), *additions):
            entries.append(LayerConfig(name=name, quantize_input=False, quantize_weight=False))
        # A base entry could quantize a layer of ``floats``.
        kept = [entry for entry in self.base.layers if entry.name not in floats]
        spec = QuantizationSpec([*kept, *entries])
        plan = self.recipe.plan(self.model, spec)
        return Placement(spec=spec, plan=plan, splits=tuple(self._splits(plan, floats)))

    def _names(self, floats: Floats) -> list[str]:
        # ``layers`` calls this with an empty set: reading it here would recurse.
        return sorted(floats) if not floats else [x for x in self.layers if x in floats]

    def _splits(self, plan: QuantizationPlan, floats: Floats) -> Iterable[tuple[str, str]]:
        """Yield each float layer with an addition fused into its kernel."""
        quantized = set()
        for entry in plan.quantizers:
            for consumer in entry.consumers:
                quantized.add((consumer.layer, consumer.input))
        for call in self._graph.calls:
            read = [(call.name, index) in quantized for index in range(len(call.inputs))]
            if not is_addition(call) or not any(read):
                continue
            for tensor, is_quantized in zip(call.inputs, read, strict=True):
                root = None if is_quantized else chain_root(self._graph, tensor, sole=True)
                if root is not None and root.layer in floats:
                    yield root.layer, call.layer

    def quantized(self, floats: Floats) -> Any:
        """Return the quantized, calibrated and bias-corrected model of a placement."""
        plan = self.placement(floats).plan
        model = apply_plan(self.model, plan)
        # A plan without quantizers is the float model, which has nothing to calibrate.
        if plan.quantizers:
            self.recipe.finish(model, self._calibration)
        return model

    def value(self, floats: Floats, metric: Metric) -> float:
        """Return the metric of a placement."""

        def measure() -> float:
            # Results from the journal do not count towards the budget.
            self.evaluations += 1
            return metric(_predict(self.quantized(floats), self._inputs), self.reference)

        return float(self._journal.result(f"value {_key(floats)}", measure))

    def knows(self, floats: Floats) -> bool:
        """Whether a placement has been measured."""
        return self._journal.knows(f"value {_key(floats)}")

    def ranking(self) -> Ranking:
        """Return a fast predictor of the effect of placements."""
        return Ranking(self)


class Ranking:
    """Predicts the effect of placements by disabling quantizers of one quantized model.

    The prediction neglects the effect of a placement on quantizers with several readers and on bias
    correction.
    """

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        # With every layer in INT8: each placement disables a subset of these quantizers.
        model = candidates.quantized(frozenset())
        graph = LayerGraph(model)
        batches = read_samples(graph, candidates._inputs, _RANKING_SAMPLES, _RANKING_SAMPLES)
        self._board = Switchboard(graph, batches)
        self._reference: Outputs = self._board.outputs(())
        self._measure: Measure = choose_measure(self._reference)

    def effect(self, floats: Floats) -> float:
        """Return the remaining effect on the outputs with the given layers in float."""

        def measure() -> float:
            plan = self._candidates.placement(floats).plan
            on = {entry.name for entry in plan.quantizers}
            outputs = self._board.outputs([name for name in self._board.names if name in on])
            return effect(self._measure, outputs, self._reference)

        return float(self._candidates._journal.result(f"effect {_key(floats)}", measure))


def _key(floats: Collection[str]) -> str:
    return ",".join(sorted(floats))


def _predict(model: Any, inputs: np.ndarray, batch_size: int = 64) -> list[np.ndarray]:
    """Return the outputs of a model, one array per output."""
    run = compile_forward(model)
    parts = []
    # Quantizing the weights once, not in each batch, does not change the outputs.
    with folded_weights(model):
        for start in range(0, len(inputs), batch_size):
            batch = inputs[start : start + batch_size]
            parts.append(run(tf.cast(batch, model.inputs[0].dtype)))
    found = []
    for index in range(len(parts[0])):
        found.append(np.concatenate([np.asarray(part[index], np.float32) for part in parts]))
    return found


def compile_forward(model: Any) -> Callable[..., list[Any]]:
    """Return a compiled inference function from the inputs of a model, in order, to its outputs.

    The function is traced once and accepts every batch size of the model. Switches of quantizers
    remain effective after tracing.
    """

    def forward(*parts: Any) -> list[Any]:
        return list(keras.tree.flatten(model(pack_inputs(model, parts), training=False)))

    # Fixed signature from the symbolic inputs: a plain tf.function would retrace for the smaller
    # last batch.
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in model.inputs]
    function: Any = tf.function(forward, autograph=False)
    traced: Callable[..., list[Any]] = function.get_concrete_function(*specs)
    return traced
