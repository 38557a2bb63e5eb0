"""search: which layers to leave in float, within a bound, and whether INT8 pays at all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from qat_lib.core.spec import QuantizationSpec
from qat_lib.errors import ConfigError
from qat_lib.keras.diagnosis.journal import Journal, fingerprint_of
from qat_lib.keras.search.candidates import Candidates, Floats
from qat_lib.keras.search.fewest import FewestSearch
from qat_lib.keras.search.metrics import Metric, MetricName, choose_metric
from qat_lib.keras.search.report import FloatLayer, PlacementResult, SpeedComparison
from qat_lib.keras.search.speed import LEAST_RATIO, SpeedTrial
from qat_lib.options import BackendChoice
from qat_lib.ptq import PtqRecipe

Progress = Callable[[str, int, int], None]
Objective: TypeAlias = Literal["fewest", "fastest"]

_FASTER = 0.99
"""Share of the best latency that a placement must stay below to replace it."""


def search(
    model: Any,
    inputs: np.ndarray,
    labels: Any = None,
    *,
    max_drop: float,
    calibration: Any = None,
    metric: MetricName | Metric | None = None,
    objective: Objective = "fewest",
    recipe: PtqRecipe | None = None,
    spec: QuantizationSpec | None = None,
    backend: BackendChoice | None = "auto",
    batch_size: int = 1,
    seconds: float = 2.0,
    evaluations: int = 64,
    builds: int = 12,
    journal: str | Path | None = None,
    on_progress: Progress | None = None,
) -> PlacementResult:
    """Search which layers to leave in float so that a metric stays within a bound.

    Each placement is planned from its spec, quantized, calibrated and measured as the result will
    be, so that ``quantize_model`` and ``qatline quantize`` with that spec give it exactly. The
    result is compared with the float engine (FP16 where the backend has it), both built and timed
    in turns: where INT8 is not at least 1.02 times as fast, the verdict is to keep it.

    Args:
        model: a Functional or Sequential Keras model in float, with one input; it is not changed.
        inputs: inputs to measure the metric on, ``(samples, ...)``.
        labels: class numbers ``(samples,)``, for the metric ``"accuracy"``.
        max_drop: largest accepted drop of the metric, as a share: 0.005 is half a point.
        calibration: data to calibrate on, in any form that ``calibrate`` takes. Default:
            ``inputs``.
        metric: ``"accuracy"``, ``"agreement"`` (labels equal to the float model's), ``"fidelity"``
            (1 minus the relative error of the outputs), or a function of the outputs (a list of
            arrays) and the float model's that gives a number, greater is better. Default: the
            first of them that labels and outputs allow.
        objective: ``"fewest"`` (default) layers in float, or ``"fastest"``: further layers go to
            float where the built engine gets faster by it.
        recipe: how a placement is quantized. Default: as ``qatline quantize`` does.
        spec: entries that every placement has.
        backend: what builds the engines; None builds none and leaves out the comparison.
        batch_size: samples in a timed request. Default 1.
        seconds: measuring time for each engine. Default 2.
        evaluations: number of placements that are quantized and measured, at most about. Default
            64.
        builds: with ``"fastest"``, number of placements that are built. Default 12.
        journal: file that keeps results until the end; killed and started again, the search goes
            on with them. Default: none.
        on_progress: called with the phase, the steps done and the steps in all.

    Raises:
        ConfigError: an argument is out of range, or does not fit the model.
        SpecError, UnsupportedModelError, CalibrationError: see ``qat_lib.quantize_model`` and
            ``qat_lib.calibrate``.
        BackendUnavailableError: the backend can't be used here.
    """
    _check(model, inputs, labels, max_drop, objective)
    recipe, base = recipe or PtqRecipe(), spec or QuantizationSpec()
    named = metric if isinstance(metric, str) else None
    settings = [repr(recipe), base.to_list(), named or repr(metric), evaluations]
    path = None if journal is None else Path(journal)
    book = Journal(path, fingerprint_of(model, [inputs], settings))
    data = inputs if calibration is None else calibration
    candidates = Candidates(model, data, inputs, recipe=recipe, base=base, journal=book)
    if metric is None or isinstance(metric, str):
        name, function = choose_metric(candidates.reference, labels, metric)
    else:
        name, function = getattr(metric, "__name__", "metric"), metric
    run = _Search(
        candidates=candidates,
        metric=function,
        max_drop=max_drop,
        budget=evaluations,
        report=on_progress or _quiet,
        journal=book,
    )
    floats, proven = run.fewest()
    speed = None
    if backend is not None:
        with tempfile.TemporaryDirectory(prefix="qatline-search-") as folder:
            trial = SpeedTrial.on(Path(folder), backend, batch_size, seconds)
            if objective == "fastest" and floats is not None:
                floats = run.fastest(floats, trial, builds)
                proven = False
            speed = run.compared(floats or frozenset(), trial)
    result = run.result(floats, name, proven=proven, speed=speed, samples=len(inputs))
    book.remove()
    return result


def _check(model: Any, inputs: Any, labels: Any, max_drop: float, objective: str) -> None:
    if len(model.inputs) != 1:
        raise ConfigError(f"Expected a model with one input. {model.name} has {len(model.inputs)}.")
    if not 0 <= max_drop <= 1:
        raise ConfigError(f"Expected max_drop from 0 to 1 (100 %). Received: {max_drop!r}.")
    if not len(inputs) or (labels is not None and len(labels) != len(inputs)):
        count = "none" if labels is None else len(labels)
        raise ConfigError(
            f"Expected at least one sample, and a label for each. Received {len(inputs)} samples, "
            f"labels: {count}."
        )
    if objective not in ("fewest", "fastest"):
        raise ConfigError(f"Expected the objective fewest or fastest. Received: {objective!r}.")


def _quiet(_phase: str, _done: int, _total: int) -> None:
    """Take no note of progress."""


@dataclass(frozen=True, kw_only=True)
class _Search:
    """One search."""

    candidates: Candidates
    metric: Metric
    max_drop: float
    budget: int
    report: Progress
    journal: Journal

    def drop(self, floats: Floats) -> float:
        """Return the drop of the metric from the float model's."""
        done = self.candidates.evaluations
        self.report("placements", done, max(self.budget, done + 1))
        return self._float_value - self.candidates.value(floats, self.metric)

    @property
    def _float_value(self) -> float:
        reference = self.candidates.reference
        return self.metric(reference, reference)

    def fits(self, floats: Floats) -> bool:
        """Whether a placement is within the bound."""
        return self.drop(floats) <= self.max_drop + 1e-9

    def fewest(self) -> tuple[Floats | None, bool]:
        """Return the fewest layers in float, and whether that is proven.

        None stands for no placement with a layer in INT8.
        """
        if self.fits(frozenset()):
            return frozenset(), True
        ranking = self.candidates.ranking()
        found = FewestSearch(
            layers=self.candidates.layers,
            effect=ranking.effect,
            fits=self.fits,
            affordable=lambda: self.budget - self.candidates.evaluations,
        ).run()
        if found.floats == frozenset(self.candidates.layers):
            return None, found.proven  # that is the float model
        return found.floats, found.proven

    def fastest(self, floats: Floats, trial: SpeedTrial, builds: int) -> Floats:
        """Return a placement within the bound that a built engine runs faster."""
        best, path = floats, trial.build_int8(self.candidates.quantized(floats), "best")
        for number, layer in enumerate(self._cheap_first(floats)[:builds]):
            self.report("engines", number, builds)
            tried = best | {layer}
            other = trial.build_int8(self.candidates.quantized(tried), f"trial{number}")
            found = trial.compare({"best": path, "other": other})
            if found["other"] < _FASTER * found["best"] and self.fits(tried):
                best, path = tried, other
        return best

    def _cheap_first(self, floats: Floats) -> Sequence[str]:
        """Return the layers in INT8, those with the fewest weights first: they gain least."""
        sizes = {}
        for layer, operation in self.candidates._graph.layers():
            sizes[layer] = operation.count_params() if hasattr(operation, "count_params") else 0
        left = [layer for layer in self.candidates.layers if layer not in floats]
        return sorted(left, key=lambda layer: sizes.get(layer, 0))

    def compared(self, floats: Floats, trial: SpeedTrial) -> SpeedComparison:
        """Return the latencies of a placement, of all in INT8, and of the float engine."""
        self.report("latency", 0, 1)
        paths = {
            "float": trial.build_float(self.candidates.model),
            "int8": trial.build_int8(self.candidates.quantized(floats), "int8"),
        }
        if floats:
            paths["all"] = trial.build_int8(self.candidates.quantized(frozenset()), "all")
        found = trial.compare(paths)
        self.report("latency", 1, 1)
        return SpeedComparison(
            backend=trial.backend,
            batch_size=trial.batch_size,
            float_precision=trial.float_precision,
            float_ms=found["float"],
            int8_ms=found["int8"],
            all_int8_ms=found.get("all", found["int8"]),
            least=LEAST_RATIO,
        )

    def result(
        self,
        floats: Floats | None,
        metric: str,
        *,
        proven: bool,
        speed: SpeedComparison | None,
        samples: int,
    ) -> PlacementResult:
        """Return the result with its verdict.

        Of no placement it is that of every layer in INT8.
        """
        chosen = frozenset() if floats is None else floats
        is_fast = speed is None or speed.passed
        kept = "fp32" if speed is None else speed.float_precision
        placement = self.candidates.placement(chosen)
        return PlacementResult(
            model=self.candidates.model.name,
            verdict="int8" if floats is not None and is_fast else f"keep {kept}",
            spec=placement.spec,
            plan=placement.plan,
            metric=metric,
            samples=samples,
            float_value=self._float_value,
            all_int8_value=self.candidates.value(frozenset(), self.metric),
            value=self.candidates.value(chosen, self.metric),
            max_drop=self.max_drop,
            floats=tuple(self._float_layer(layer, chosen) for layer in sorted(chosen)),
            weighted_layers=len(self.candidates.layers),
            evaluations=self.candidates.evaluations,
            proven=proven,
            speed=speed,
        )

    def _float_layer(self, layer: str, floats: Floats) -> FloatLayer:
        without = floats - {layer}
        drop = self.drop(without) if self.candidates.knows(without) else None
        placement = self.candidates.placement(floats)
        splits = tuple(addition for each, addition in placement.splits if each == layer)
        return FloatLayer(layer=layer, drop_in_int8=drop, splits=splits)
