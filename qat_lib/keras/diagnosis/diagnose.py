"""Diagnosis of a quantized model: tensor errors, layer effects, causes and fixes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

from qat_lib.calibrators.batches import count_samples
from qat_lib.core.plan_entries import SkippedLayer
from qat_lib.errors import CalibrationError
from qat_lib.files.journal import Journal, fingerprint
from qat_lib.keras.correction.lockstep import read_samples
from qat_lib.keras.diagnosis.causes import (
    OUTLIER,
    Diagnosed,
    Evidence,
    find_cause,
    find_dead_channels,
    find_uneven_inputs,
    unexplained,
)
from qat_lib.keras.diagnosis.effects import Switchboard
from qat_lib.keras.diagnosis.report import (
    Diagnosis,
    LayerEffect,
    LayerFinding,
    PartEffect,
    TensorError,
)
from qat_lib.keras.diagnosis.sites import Site, read_sites
from qat_lib.keras.diagnosis.statistics import ErrorSums, watch_errors
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.keras.quantizers import model_quantizers
from qat_lib.optimization.metrics import Measure, Outputs, choose_measure, effect
from qat_lib.planner.planner import plan_graph
from qat_lib.planner.request import PlanRequest
from qat_lib.ptq import PtqRecipe

Progress = Callable[[str, int, int], None]
"""Called with the phase, the number of finished steps and the total number of steps."""

PLAIN = PtqRecipe(
    calibrator="percentile", backend="tensorrt", equalize=False, bias_correction=False
)
"""Recipe without equalization and bias correction, which move errors between layers."""

MINOR = 0.05
"""Share of the whole effect below which a finding is minor."""
LARGE = 0.25
"""Share of the whole effect above which a layer is reported even without a matching rule."""


def diagnose(
    model: Any,
    data: Any,
    *,
    samples: int = 32,
    batch_size: int = 32,
    measure: Measure | None = None,
    layers: int | None = None,
    recipe: PtqRecipe | None = None,
    journal: str | Path | None = None,
    on_progress: Progress | None = None,
) -> Diagnosis:
    """Find the layers of a quantized model that lose accuracy, with causes and fixes.

    Tensor errors are measured in the fully quantized model, so the inputs of a layer are quantized,
    too. The effect of a layer on the outputs is measured twice, with only this layer quantized and
    with only this layer in float, separately for weights and inputs. This takes about four partial
    forward passes per layer, each starting at the layer.

    Args:
        model: a float Keras model, quantized by ``recipe`` first, or a quantized and calibrated
            model, used unchanged. The effects of a quantized model are relative to its own float
            weights, including corrected biases.
        data: unlabeled inputs in any form accepted by ``calibrate``; a float model is calibrated on
            all of them.
        samples: number of samples to measure on, from the start of the data. Default 32.
        batch_size: batch size for array data. Default 32.
        measure: ``"kl"`` or ``"error"``, see ``Diagnosis.measure``. Default: ``"kl"`` for one
            output ``(samples, classes)``, else ``"error"``.
        layers: number of layers to measure effects for, noisiest first. Default: all.
        recipe: quantization recipe for a float model. Default: the one of ``qatline quantize``,
            without equalization and bias correction, because they hide errors of one layer in
            another.
        journal: file for intermediate results, deleted at the end; if the diagnosis is killed, the
            same call resumes from it. Default: none.
        on_progress: called with the phase, the number of finished steps and the total.

    Returns:
        The diagnosis; ``print`` shows it as a table.

    Raises:
        CalibrationError: the data is empty, ``samples`` is below 1, or the model has no enabled
            quantizer.
        ConfigError: the measure does not fit the outputs, or the journal can't be written.
        UnsupportedModelError: the model has no graph of layers.

    Examples:
        >>> import keras, numpy as np, qat_lib
        >>> x = keras.Input((4,), name="x")
        >>> model = keras.Model(x, keras.layers.Dense(3, name="logits")(x))
        >>> data = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
        >>> [layer.layer for layer in qat_lib.diagnose(model, data).layers]
        ['logits']
    """
    if not model_quantizers(model):
        model = (recipe or PLAIN).quantize(model, data)
    graph = LayerGraph(model)
    batches = read_samples(graph, data, samples, batch_size)
    quantizers = model_quantizers(model)
    sites = [site for site in read_sites(graph) if quantizers[site.quantizer].enabled]
    if not sites:
        raise CalibrationError(
            f"Expected a model with quantizers that are on. {graph.name!r} has none: call enable() "
            "on those to diagnose."
        )
    # Errors of tensors take one run and are not in the journal; effects take many.
    arrays = [*(each.numpy() for each in model.variables), *keras.tree.flatten(batches)]
    path = None if journal is None else Path(journal)
    book = Journal(path, fingerprint([model.to_json(), measure], arrays))
    report = on_progress or _quiet
    report("errors of tensors", 0, 1)
    sums = watch_errors(model, batches, sites)
    report("errors of tensors", 1, 1)
    evidence = {}
    for site in sites:
        if site.quantizer in sums:
            evidence[site.quantizer] = Evidence(
                site=site, sums=sums[site.quantizer], quantizer=quantizers[site.quantizer]
            )
    with Switchboard(graph, batches) as board:
        effects = _Effects(board, book, measure)
        parts = _most_noise(_parts_of(evidence), evidence, layers)
        found = _measure_layers(parts, evidence, effects, report)
        total = effects.only(effects.every)
    diagnosis = Diagnosis(
        model=graph.name,
        measure=effects.measure,
        samples=sum(map(count_samples, batches)),
        total=total,
        layers=tuple(sorted(found, key=lambda row: -row.largest)),
        tensors=tuple(map(_tensor_error, evidence.values())),
        findings=tuple(_findings(found, evidence, total)),
        skipped=tuple(_in_float(graph)),
    )
    book.remove()
    return diagnosis


def _quiet(_phase: str, _done: int, _total: int) -> None:
    """Discard a progress report."""


@dataclass(kw_only=True)
class _Parts:
    """Names of the quantizers of one layer, for its weights and its inputs."""

    weights: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)


class _Effects:
    """Effects of sets of quantizers, cached in the journal."""

    def __init__(self, board: Switchboard, journal: Journal, measure: Measure | None) -> None:
        self._board, self._journal = board, journal
        self.every = board.names
        self._reference: Outputs = board.outputs(())
        self.measure = choose_measure(self._reference, measure)

    def only(self, names: Collection[str]) -> float:
        """Return the effect with only the named quantizers enabled."""
        # Sorted, so that each set of quantizers has one key.
        key = ",".join(sorted(names))
        return float(self._journal.result(key, lambda: self._measured(names)))

    def without(self, names: Collection[str]) -> float:
        """Return the effect with all but the named quantizers enabled."""
        return self.only([name for name in self.every if name not in names])

    def _measured(self, names: Collection[str]) -> float:
        return effect(self.measure, self._board.outputs(names), self._reference)


def _parts_of(evidence: Mapping[str, Evidence]) -> dict[str, _Parts]:
    """Return the quantizers by layer name as used in a spec."""
    found: dict[str, _Parts] = {}
    for name, each in evidence.items():
        for layer in each.site.readers:
            parts = found.setdefault(layer, _Parts())
            (parts.weights if each.site.kind == "weight" else parts.inputs).append(name)
    return found


def _most_noise(
    parts: Mapping[str, _Parts], evidence: Mapping[str, Evidence], count: int | None
) -> dict[str, _Parts]:
    """Return the ``count`` noisiest layers, in the order of the model."""
    if count is None or count >= len(parts):
        return dict(parts)
    worst = {}
    for layer, each in parts.items():
        names = each.weights + each.inputs
        worst[layer] = min(_quality_db(evidence[name].sums) for name in names)
    chosen = sorted(worst, key=worst.__getitem__)[:count]
    return {layer: parts[layer] for layer in parts if layer in chosen}


def _quality_db(sums: ErrorSums) -> float:
    """Return the SQNR of a tensor for its weakest channels, in dB."""
    least = min(sums.sqnr_db, sums.channel_sqnr_db)
    # Input channels have no errors of their own: convert their spread to dB as a penalty.
    return least - (20 * math.log10(sums.input_spread) if sums.input_spread > OUTLIER else 0.0)


def _measure_layers(
    parts: Mapping[str, _Parts],
    evidence: Mapping[str, Evidence],
    effects: _Effects,
    report: Progress,
) -> list[LayerEffect]:
    rows = []
    for done, (layer, each) in enumerate(parts.items()):
        report("effects of layers", done, len(parts))
        weights = _part(each.weights, evidence, effects)
        inputs = _part(each.inputs, evidence, effects)
        rows.append(LayerEffect(layer=layer, weights=weights, inputs=inputs))
    report("effects of layers", len(parts), len(parts))
    return rows


def _part(
    names: Sequence[str], evidence: Mapping[str, Evidence], effects: _Effects
) -> PartEffect | None:
    if not names:
        return None
    return PartEffect(
        quantizers=tuple(names),
        only=effects.only(names),
        without=effects.without(names),
        sqnr_db=min(evidence[name].sums.sqnr_db for name in names),
    )


def _tensor_error(evidence: Evidence) -> TensorError:
    site, sums = evidence.site, evidence.sums
    return TensorError(
        quantizer=site.quantizer,
        kind=site.kind,
        tensor=site.tensor,
        layer=site.layer,
        readers=site.readers,
        sqnr_db=sums.sqnr_db,
        channel_sqnr_db=sums.channel_sqnr_db,
        cosine=sums.cosine,
        clipped=sums.clipped / max(sums.count, 1),
        channel_spread=evidence.spread,
    )


def _findings(
    rows: Sequence[LayerEffect], evidence: Mapping[str, Evidence], total: float
) -> list[LayerFinding]:
    """Return the findings: major ones first, then by decreasing effect."""
    # A quantizer with several readers belongs to several parts. The part with the fewest
    # quantizers attributes the effect best.
    smallest: dict[str, PartEffect] = {}
    for row in rows:
        for part in (row.weights, row.inputs):
            for name in () if part is None else part.quantizers:
                known = smallest.get(name)
                if part and (known is None or len(part.quantizers) < len(known.quantizers)):
                    smallest[name] = part
    found = []
    for name, part in smallest.items():
        # ``only``, not ``without``: other errors can hide or amplify the effect of a layer.
        is_minor = part.only < MINOR * total
        cause = find_cause(evidence[name])
        # Uneven inputs are common and often harmless, so they only explain measurable effects.
        if cause is None and not is_minor:
            cause = find_uneven_inputs(evidence[name])
        if cause is None and part.only > LARGE * total:
            cause = unexplained(evidence[name])
        for each, minor in ((cause, is_minor), (find_dead_channels(evidence[name]), True)):
            if each is not None:
                found.append(_finding(evidence[name].site, part, each, minor))
    return sorted(found, key=lambda finding: (finding.minor, -finding.only))


def _finding(site: Site, part: PartEffect, cause: Diagnosed, minor: bool) -> LayerFinding:
    return LayerFinding(
        cause=cause.cause,
        layer=site.layer,
        tensor=site.tensor,
        quantizer=site.quantizer,
        only=part.only,
        without=part.without,
        message=cause.message,
        change=cause.change,
        advice=cause.advice,
        channels=cause.channels,
        minor=minor,
    )


def _in_float(graph: LayerGraph) -> list[SkippedLayer]:
    """Return the layers without quantization support, with advice."""
    plan = plan_graph(graph, PlanRequest.of("full", None, None, unsigned=False))
    found = []
    for layer in plan.skipped:
        if layer.reason == "unsupported" or (layer.reason == "not quantizable" and layer.detail):
            found.append(layer)
    return found
