"""Search for layers to keep in float within a bound, and comparison with the float engine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from qat_lib.core.spec import QuantizationSpec
from qat_lib.errors import ConfigError
from qat_lib.files.journal import Journal, fingerprint
from qat_lib.keras.search.candidates import Candidates, Floats
from qat_lib.keras.search.fewest import FewestSearch
from qat_lib.keras.search.report import FloatLayer, PlacementResult, SpeedComparison
from qat_lib.optimization.metrics import Metric, MetricName, choose_metric, metric_key
from qat_lib.optimization.trial import LEAST_RATIO, EngineTrial
from qat_lib.options import BackendChoice
from qat_lib.ptq import PtqRecipe

Progress = Callable[[str, int, int], None]
Objective: TypeAlias = Literal["fewest", "fastest"]

# Largest latency, relative to the best so far, of a placement that replaces it.
_FASTER = 0.99


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
    """Search for a set of float layers that keeps a metric within a bound.

    Each placement is planned from its spec, quantized, calibrated and measured like the final
    result, so ``quantize_model`` and ``qatline quantize`` reproduce it exactly from the spec. The
    search then builds engines of the result and of the float model (in each float precision of the
    backend) and times them in turns. If INT8 is not at least 1.02 times as fast as the fastest one,
    the verdict is to keep that.

    Args:
        model: a Functional or Sequential float Keras model with one input; it is not modified.
        inputs: inputs to measure the metric on, ``(samples, ...)``.
        labels: class numbers ``(samples,)``, for the metric ``"accuracy"``.
        max_drop: largest accepted drop of the metric, as a share: 0.005 is half a point.
        calibration: calibration data in any form accepted by ``calibrate``. Default: ``inputs``.
        metric: ``"accuracy"``, ``"agreement"`` (same class as the float model), ``"fidelity"`` (1
            minus the relative error of the outputs), or a function of the outputs (a list of
            arrays) and those of the float model that returns a number, greater is better; with a
            true attribute ``float_outputs``, output layers stay in float by default. Default: the
            first of these supported by labels and outputs.
        objective: ``"fewest"`` (default) layers in float, or ``"fastest"``, which puts further
            layers in float if this makes the engine faster.
        recipe: quantization recipe of each placement. Default: the one of ``qatline quantize``.
        spec: entries common to all placements.
        backend: backend of the engines; None skips building and comparing them.
        batch_size: number of samples per timed request. Default 1.
        seconds: measuring time for each engine. Default 2.
        evaluations: approximate maximum number of quantized and measured placements. Default 64.
        builds: maximum number of engines built for ``"fastest"``. Default 12.
        journal: file for intermediate results, deleted at the end; if the search is killed, the
            same call resumes from it. Default: none.
        on_progress: called with the phase, the number of finished steps and the total.

    Raises:
        ConfigError: an argument is out of range, or does not fit the model.
        SpecError, UnsupportedModelError, CalibrationError: see ``qat_lib.quantize_model`` and
            ``qat_lib.calibrate``.
        BackendUnavailableError: the backend is not available.
    """
    _check(model, inputs, labels, max_drop, objective)
    recipe = (recipe or PtqRecipe()).for_metric(metric)
    base = spec or QuantizationSpec()
    # Results in a journal are valid for the same model, data and settings only.
    key = metric_key(metric) if callable(metric) else metric
    settings = [model.to_json(), repr(recipe), base.to_list(), key, evaluations]
    path = None if journal is None else Path(journal)
    arrays = [*(each.numpy() for each in model.variables), inputs]
    arrays += [] if labels is None else [labels]
    if isinstance(calibration, np.ndarray):  # other forms may be read once only
        arrays.append(calibration)
    book = Journal(path, fingerprint(settings, arrays))
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
            trial = EngineTrial.on(Path(folder), backend, batch_size, seconds)
            if objective == "fastest" and floats is not None:
                floats = run.fastest(floats, trial, builds)
                proven = False  # more layers in float than necessary
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
    """Discard a progress report."""


@dataclass(frozen=True, kw_only=True)
class _Search:
    """State of one search."""

    candidates: Candidates
    metric: Metric
    max_drop: float
    budget: int
    report: Progress
    journal: Journal

    def drop(self, floats: Floats) -> float:
        """Return the drop of the metric relative to the float model."""
        done = self.candidates.evaluations
        self.report("placements", done, max(self.budget, done + 1))
        return self._float_value - self.candidates.value(floats, self.metric)

    @property
    def _float_value(self) -> float:
        reference = self.candidates.reference
        return self.metric(reference, reference)

    def fits(self, floats: Floats) -> bool:
        """Whether a placement is within the bound."""
        # Tolerate rounding of the difference: 0.9 - 0.895 > 0.005 in floating point.
        return self.drop(floats) <= self.max_drop + 1e-9

    def fewest(self) -> tuple[Floats | None, bool]:
        """Return the smallest set of float layers, and whether it is proven minimal.

        The set is None if no placement with a layer in INT8 is within the bound.
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
            return None, found.proven  # this is the float model
        return found.floats, found.proven

    def fastest(self, floats: Floats, trial: EngineTrial, builds: int) -> Floats:
        """Return the placement within the bound with the fastest engine."""
        best, path = floats, trial.build_int8(self.candidates.quantized(floats), "best").path
        for number, layer in enumerate(self._cheap_first(floats)[:builds]):
            self.report("engines", number, builds)
            tried = best | {layer}
            other = trial.build_int8(self.candidates.quantized(tried), f"trial{number}").path
            found = trial.compare({"best": path, "other": other})
            # Test the latency first, since the metric costs a calibration.
            if found["other"] < _FASTER * found["best"] and self.fits(tried):
                best, path = tried, other
        return best

    def _cheap_first(self, floats: Floats) -> Sequence[str]:
        """Return the INT8 layers by number of weights: small layers gain least from INT8."""
        sizes = {}
        for layer, operation in self.candidates._graph.layers():
            sizes[layer] = operation.count_params() if hasattr(operation, "count_params") else 0
        left = [layer for layer in self.candidates.layers if layer not in floats]
        return sorted(left, key=lambda layer: sizes.get(layer, 0))

    def compared(self, floats: Floats, trial: EngineTrial) -> SpeedComparison:
        """Return the latencies of a placement, of every layer in INT8, and of the float engine."""
        self.report("latency", 0, 1)
        float_engine = trial.fastest(trial.build_float(self.candidates.model).path)
        paths = {
            "float": float_engine.path,
            "int8": trial.build_int8(self.candidates.quantized(floats), "int8").path,
        }
        if floats:
            paths["all"] = trial.build_int8(self.candidates.quantized(frozenset()), "all").path
        found = trial.compare(paths)
        self.report("latency", 1, 1)
        return SpeedComparison(
            backend=trial.backend,
            batch_size=trial.batch_size,
            float_precision=float_engine.precision,
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

        Without a placement, the values are those with every layer in INT8.
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
        # Only if the search measured it: the report is not worth another calibration.
        without = floats - {layer}
        drop = self.drop(without) if self.candidates.knows(without) else None
        placement = self.candidates.placement(floats)
        splits = tuple(addition for each, addition in placement.splits if each == layer)
        return FloatLayer(layer=layer, drop_in_int8=drop, splits=splits)
