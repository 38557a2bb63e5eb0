"""``optimize``: one call from a float model to a checked INT8 engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from qat_lib.analysis import analyze_onnx, to_html
from qat_lib.calibrators.batches import read_arrays
from qat_lib.core.plan import QuantizationPlan
from qat_lib.core.spec import QuantizationSpec
from qat_lib.engines import EngineArtifact, choose_backend, load_engine, read_manifest
from qat_lib.engines.backend import get_backend
from qat_lib.errors import ConfigError, UnsupportedModelError
from qat_lib.files.output_files import check_output
from qat_lib.files.whole_files import write_text
from qat_lib.optimization.metrics import Metric, MetricName, Outputs, choose_metric
from qat_lib.optimization.trial import LEAST_RATIO, EngineTrial
from qat_lib.pages import numbers
from qat_lib.ptq import FrontEnd, PtqRecipe, front_end_of, loaded_model

Method: TypeAlias = Literal["calibration", "float layers", "training"]
Progress = Callable[[str, int, int], None]

_SHARES = ("accuracy", "agreement", "fidelity")
_BATCH = 64
_FILES = ("model.onnx", "model.engine", "float.engine", "plan.json", "report.html", "report.json")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One way of quantizing the model, measured on its built engine.

    Attributes:
        method: ``"calibration"``; ``"float layers"``: some layers stay in float; ``"training"``:
            quantization-aware training of the calibrated model.
        value: metric of the INT8 engine.
        drop: how far it is below the float engine's.
        seconds: duration.
        float_layers: layers that this attempt keeps in float.
    """

    method: Method
    value: float
    drop: float
    seconds: float
    float_layers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """An INT8 engine and its comparison with the float engine.

    ``str(optimized)`` is one line for people.

    Attributes:
        model: name of the model.
        verdict: ``"int8"``; or ``"keep fp32"``, ``"keep fp16"`` or ``"keep bf16"`` where the drop is
            above ``max_drop``, or the INT8 engine is not at least 1.02 times as fast.
        reason: why the float engine is the better choice; empty for ``"int8"``.
        onnx: the INT8 graph, ``model.onnx``.
        engine: the INT8 engine, ``model.engine``.
        float_engine: the fastest engine of the float model, ``float.engine``.
        backend: backend of the engines.
        plan: the quantization plan.
        metric: name of the metric; greater is better.
        samples: number of samples of the metric.
        float_value: metric of the float model, in the most precise engine of the backend.
        value: metric of the INT8 engine.
        max_drop: largest accepted drop; None for any.
        int8_layers: layers with weights that the backend runs in INT8.
        weighted_layers: all layers with weights.
        float_precision: precision of ``float_engine``: ``"fp32"``, ``"fp16"`` or ``"bf16"``.
        float_ms: median latency of the float engine at batch 1, in milliseconds.
        int8_ms: median latency of the INT8 engine.
        attempts: what was tried, the last one is the result.
        warnings: warnings of the build.
        seconds: duration of the whole call.
    """

    model: str
    verdict: str
    reason: str
    onnx: Path
    engine: Path
    float_engine: Path
    backend: str
    plan: QuantizationPlan
    metric: str
    samples: int
    float_value: float
    value: float
    max_drop: float | None
    int8_layers: int
    weighted_layers: int
    float_precision: str
    float_ms: float
    int8_ms: float
    attempts: tuple[Attempt, ...]
    warnings: tuple[str, ...]
    seconds: float

    @property
    def speedup(self) -> float:
        """Speed of the INT8 engine as a multiple of the float engine's, at batch 1."""
        return self.float_ms / self.int8_ms

    def __str__(self) -> str:
        """Return the result in one line."""
        return (
            f"{self.model}: {self.verdict}, {self.int8_layers} of {self.weighted_layers} layers in "
            f"INT8, {self.metric} {self._text(self.float_value)} -> {self._text(self.value)}, "
            f"{self.speedup:.2f} times {self.float_precision.upper()} ({self.int8_ms:.3g} ms, "
            f"{get_backend(self.backend).title})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types; the plan is in ``plan.json``."""
        fields = {key: value for key, value in self.__dict__.items() if key != "plan"}
        for name in ("onnx", "engine", "float_engine"):
            fields[name] = str(fields[name])
        attempts = [
            {**asdict(each), "float_layers": list(each.float_layers)} for each in self.attempts
        ]
        fields |= {"attempts": attempts, "warnings": list(self.warnings)}
        return {**fields, "speedup": self.speedup}

    def _text(self, value: float) -> str:
        return numbers.percent(value, 2) if self.metric in _SHARES else f"{value:.4g}"

    def _figures(self) -> list[dict[str, str]]:
        """Return figures for the head of the report."""
        kind = self.float_precision.upper()
        tried = ", ".join(attempt.method for attempt in self.attempts)
        quality = f"{kind}: {self._text(self.float_value)}; {self.samples} samples; tried: {tried}"
        backend = get_backend(self.backend).title
        speed = f"{self.int8_ms:.3g} ms; {kind}: {self.float_ms:.3g} ms; {backend}, batch 1"
        rows = (
            ("Verdict", self.verdict, self.reason or "checked against ONNX Runtime"),
            (self.metric.capitalize(), self._text(self.value), quality),
            ("Speed", f"{self.speedup:.2f} × {kind}", speed),
        )
        return [dict(zip(("title", "value", "detail"), row, strict=True)) for row in rows]


def optimize(
    model: Any,
    data: Any,
    output: str | Path,
    *,
    labels: Any = None,
    test_data: Any = None,
    metric: MetricName | Metric | None = None,
    max_drop: float | None = None,
    train: Callable[[Any], object] | None = None,
    recipe: PtqRecipe | None = None,
    spec: QuantizationSpec | None = None,
    preprocessing: Any = None,
    classes: Sequence[str] = (),
    max_batch_size: int | None = None,
    seconds: float = 2.0,
    on_progress: Progress | None = None,
) -> Optimized:
    """Quantize a model, build its INT8 engine, and compare it with the float engine.

    The backend of the recipe decides target, signs and width of the integers. The folder gets
    ``model.onnx``, ``model.engine`` and ``float.engine`` with their manifests, ``plan.json``,
    ``report.json`` and ``report.html``. The metric is measured on both engines.

    With ``max_drop``, a calibrated engine that loses more is followed by further attempts: first
    some layers stay in float (Keras models with one input of one size, see ``qat_lib.search``), then
    ``train`` fine-tunes the calibrated model.

    Inputs of open sizes, such as ``(None, None, 3)``, get the sizes of the test data: the engines
    accept those from the smallest to the largest.

    Args:
        model: a Keras model, the path of its ``.keras`` file, or a PyTorch module that torch.fx
            traces; it is not changed.
        data: calibration data in any form that ``calibrate`` takes.
        output: folder for the files; files of an earlier call are replaced.
        labels: class numbers ``(samples,)`` of the test data, for the metric ``"accuracy"``.
        test_data: inputs to measure the metric on, in the same forms. Default: ``data``.
        metric: see ``qat_lib.search``. Default: ``"accuracy"`` with labels, else ``"agreement"`` of
            classifiers and ``"fidelity"`` of other models.
        max_drop: largest accepted drop of the metric, from 0 to 1 (0.005 is half a point). Default
            None: any; the result states the drop.
        train: trains a quantized model in place, for example ``lambda model: model.fit(x, y)``
            after ``model.compile``. Default None: no training.
        recipe: recipe of the quantization. Default: that of ``qatline quantize``.
        spec: which layers to treat differently.
        preprocessing: conversion of raw images to model inputs, recorded in the files.
        classes: names of the classes, recorded in the files.
        max_batch_size: largest batch of the engines. Default None: 32, or fewer to keep
            all tensors below 1 GiB.
        seconds: measuring time for each engine. Default 2.
        on_progress: called with the phase, the number of finished steps and the total.

    Raises:
        ConfigError: an argument is out of range or does not fit the model, or the output is not a
            folder.
        SpecError, UnsupportedModelError, CalibrationError: see ``qat_lib.quantize_model`` and
            ``qat_lib.calibrate``.
        ExportError, VerificationError: see ``qat_lib.export_onnx``.
        EngineBuildError, BackendUnavailableError: see ``qat_lib.build_engine``.

    Examples:
        >>> import keras, numpy as np, qat_lib
        >>> x = keras.Input((8, 8, 1))
        >>> y = keras.layers.Dense(3)(keras.layers.Flatten()(keras.layers.Conv2D(4, 3)(x)))
        >>> images = np.random.default_rng(0).normal(size=(64, 8, 8, 1)).astype("float32")
        >>> found = qat_lib.optimize(keras.Model(x, y), images, "optimized", seconds=0.1)
        >>> found.int8_layers
        2
    """
    began = time.perf_counter()
    if max_drop is not None and not 0 <= max_drop <= 1:
        raise ConfigError(f"Expected max_drop from 0 to 1 (100 %). Received: {max_drop!r}.")
    for each in (data, test_data):
        if isinstance(each, Iterator):
            raise ConfigError(
                "Expected data that can be read several times: arrays, a list, a tf.data.Dataset or "
                f"a DataLoader. Received: {type(each).__name__}."
            )
    model = loaded_model(model, data)
    folder = _make_folder(Path(output))
    recipe = (recipe or PtqRecipe()).for_metric(metric)
    place = recipe.deployment
    front_end = front_end_of(model)
    prepared = recipe.prepare(model, data, spec)
    _planned(recipe, prepared.model, spec)  # refuses before it builds anything
    testing = data if test_data is None else test_data
    names = front_end.input_names(model, testing)
    trial = EngineTrial(
        folder=folder,
        backend=place.backend,
        example=dict(zip(names, _first_batch(testing, names), strict=True)),
        batches=lambda: read_arrays(testing, names, _BATCH),
        max_batch_size=max_batch_size,
        seconds=seconds,
    )
    metadata = {"classes": list(classes)} if classes else None
    run = _Run(
        trial=trial,
        recipe=recipe,
        data=data,
        testing=testing,
        names=names,
        export={"preprocessing": preprocessing, "metadata": metadata},
        report=on_progress or _quiet,
    )
    run.report("float engine", 0, 1)
    built = trial.build_float(model, recipe.backend)
    backend = choose_backend(built.manifest.backend)
    if backend != trial.backend:  # which lacks an operation of the model
        run.recipe = recipe = replace(recipe, backend=backend)
        run.trial = trial = replace(trial, backend=backend)
    run.reference = run.outputs(built.path)
    run.name, run.metric = _metric(metric, run.reference, labels)
    run.float_value = run.metric(run.reference, run.reference)

    quantized = run.attempt("calibration", prepared.model, spec)
    if max_drop is not None and run.attempts[-1].drop > max_drop:
        entries = _search(front_end, model, run, labels, metric, max_drop, spec)
        if entries is not None:
            run.attempt("float layers", prepared.model, entries)
    if max_drop is not None and run.attempts[-1].drop > max_drop and train is not None:
        run.train(quantized, train)

    run.report("latency", 0, 1)
    run.speed_up_floats(max_drop)
    float_engine = trial.fastest(
        built.path, lambda path: max_drop is None or run.float_value - run.value(path) <= max_drop
    )
    times = trial.compare({"float": float_engine.path, "int8": run.artifact.path})
    last = run.attempts[-1]
    manifest = run.artifact.manifest
    reason = ""
    if max_drop is not None and last.drop > max_drop:
        reason = f"the drop of {last.drop:.4g} is above the accepted {max_drop:.4g}"
    elif times["float"] < LEAST_RATIO * times["int8"]:
        reason = f"INT8 is not at least {LEAST_RATIO} times as fast"
    found = Optimized(
        model=run.plan.model,
        verdict=f"keep {float_engine.precision}" if reason else "int8",
        reason=reason,
        onnx=folder / "model.onnx",
        engine=run.artifact.path,
        float_engine=float_engine.path,
        backend=manifest.backend,
        plan=run.plan,
        metric=run.name,
        samples=len(run.reference[0]),
        float_value=run.float_value,
        value=last.value,
        max_drop=max_drop,
        int8_layers=manifest.precision.int8_layers,
        weighted_layers=manifest.precision.weighted_layers,
        float_precision=float_engine.precision,
        float_ms=times["float"],
        int8_ms=times["int8"],
        attempts=tuple(run.attempts),
        warnings=(*built.warnings, *run.artifact.warnings, *float_engine.warnings),
        seconds=round(time.perf_counter() - began, 3),
    )
    write_text(folder / "plan.json", run.plan.to_json())
    page = to_html(analyze_onnx(found.onnx), figures=found._figures())
    write_text(folder / "report.html", page)
    write_text(folder / "report.json", json.dumps(found.to_dict(), indent=1) + "\n")
    return found


@dataclass(kw_only=True)
class _Run:
    """State of one call."""

    trial: EngineTrial
    recipe: PtqRecipe
    data: Any
    testing: Any
    names: Sequence[str]
    export: dict[str, Any]
    report: Progress

    def __post_init__(self) -> None:
        self.reference: Outputs = []
        self.name = ""
        self.metric: Metric
        self.float_value = 0.0
        self.attempts: list[Attempt] = []
        self.plan: QuantizationPlan
        self.artifact: EngineArtifact

    def outputs(self, engine: Path) -> Outputs:
        """Return each output of an engine for the test data, in the manifest's order."""
        parts = []
        with load_engine(engine) as loaded:
            if single := [info.name for info in loaded.outputs if not info.shape]:
                raise ConfigError(
                    f"Expected outputs with one row for each sample. Received {single[0]!r}, one "
                    "number for all. Leave arguments such as labels out of the data."
                )
            types = {info.name: info.dtype for info in loaded.inputs}
            # A copy of a Keras model renames inputs that Keras named itself.
            names = self.names if set(self.names) == set(types) else list(types)
            for arrays in read_arrays(self.testing, self.names, _BATCH):
                named = zip(names, arrays, strict=True)
                parts.append(loaded.infer_many({k: x.astype(types[k]) for k, x in named}))
            outputs = [info.name for info in loaded.outputs]
        return [_joined([part[name] for part in parts], name) for name in outputs]

    def value(self, engine: Path) -> float:
        """Return the metric of an engine."""
        return self.metric(self.outputs(engine), self.reference)

    def attempt(self, method: Method, model: Any, spec: QuantizationSpec | None) -> Any:
        """Quantize, calibrate and correct a float model, and build and measure its engine."""
        began = time.perf_counter()
        self.report(method, 0, 1)
        self.plan = _planned(self.recipe, model, spec)
        quantized = self.recipe.apply(model, self.plan)
        self.recipe.finish(quantized, self.data)
        floats = () if method == "calibration" or spec is None else _floats(spec)
        self._build(method, quantized, began, floats)
        return quantized

    def train(self, quantized: Any, train: Callable[[Any], object]) -> None:
        """Fine-tune a quantized model, and build and measure its engine."""
        began = time.perf_counter()
        self.report("training", 0, 1)
        train(quantized)
        self._build("training", quantized, began)

    def speed_up_floats(self, max_drop: float | None) -> None:
        """Compute layers that stayed in float in FP16 or BF16 if that is faster."""
        precision = self.artifact.manifest.precision
        is_built_here = self.artifact.manifest.backend == self.trial.backend
        if precision.int8_layers == precision.weighted_layers or not is_built_here:
            return
        value = self.attempts[-1].value

        def accepts(engine: Path) -> bool:
            nonlocal value
            value = self.value(engine)
            return max_drop is None or self.float_value - value <= max_drop

        path = self.artifact.path
        if self.trial.fastest(path, accepts).precision != "fp32":
            self.artifact = replace(self.artifact, manifest=read_manifest(path))
            drop = self.float_value - value
            self.attempts[-1] = replace(self.attempts[-1], value=value, drop=drop)

    def _build(
        self, method: Method, quantized: Any, began: float, floats: tuple[str, ...] = ()
    ) -> None:
        self.report("engine", 0, 1)
        self.artifact = self.trial.build_int8(
            quantized, "model", backend=self.recipe.backend, **self.export
        )
        value = self.value(self.artifact.path)
        self.attempts.append(
            Attempt(
                method=method,
                value=value,
                drop=self.float_value - value,
                seconds=round(time.perf_counter() - began, 3),
                float_layers=floats,
            )
        )


def _planned(recipe: PtqRecipe, model: Any, spec: QuantizationSpec | None) -> QuantizationPlan:
    plan = recipe.plan(model, spec)
    if not plan.quantizers:
        skipped = "; ".join(f"{each.layer}: {each.reason}" for each in plan.skipped)
        raise UnsupportedModelError(
            f"Expected a model with layers to quantize. {plan.model} has none"
            f"{f': {skipped}' if skipped else ''}."
        )
    return plan


def _first_batch(data: Any, names: Sequence[str]) -> list[np.ndarray]:
    first = next(read_arrays(data, names, 2), None)
    if first is None:
        raise ConfigError("Expected at least one sample of test data. Received none.")
    return first


def _joined(parts: Sequence[np.ndarray], name: str) -> np.ndarray:
    sizes = {part.shape[1:] for part in parts}
    if len(sizes) > 1:
        raise ConfigError(
            f"Expected outputs of one size for all test data. Received {name!r} of "
            f"{', '.join(map(str, sorted(sizes)))}: give test data of one size."
        )
    return np.concatenate(parts)


def _floats(spec: QuantizationSpec) -> tuple[str, ...]:
    return tuple(str(entry.name) for entry in spec.layers if entry.quantize_weight is False)


def _search(
    front_end: FrontEnd,
    model: Any,
    run: _Run,
    labels: Any,
    metric: Any,
    max_drop: float,
    spec: QuantizationSpec | None,
) -> QuantizationSpec | None:
    """Return a spec with layers in float within the bound; None if there is none."""
    search = getattr(front_end, "search", None)
    if search is None or len(run.names) > 1:
        return None
    batches = [arrays[0] for arrays in read_arrays(run.testing, run.names, _BATCH)]
    if len({batch.shape[1:] for batch in batches}) > 1:  # the search takes one array
        return None
    inputs = np.concatenate(batches)
    found = search(
        model,
        inputs,
        labels,
        max_drop=max_drop,
        calibration=run.data,
        metric=metric,
        recipe=run.recipe,
        spec=spec,
        backend=None,
        on_progress=run.report,
    )
    return found.spec if found.found else None


def _metric(asked: Any, reference: Outputs, labels: Any) -> tuple[str, Metric]:
    if callable(asked):
        return getattr(asked, "__name__", "metric"), asked
    if labels is not None and len(labels) != len(reference[0]):
        raise ConfigError(
            f"Expected a label for each sample of the test data ({len(reference[0])}). Received: "
            f"{len(labels)}."
        )
    name, function = choose_metric(reference, labels, asked)
    if labels is not None and name != "accuracy":
        raise ConfigError(
            "Expected labels with a classifier's output (samples, classes), for the metric "
            f"accuracy. Received labels for {name}: leave them out, or give a metric of your own "
            "as a function."
        )
    return name, function


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"Expected a folder to write to. Received: {folder} ({error.strerror})."
        ) from error
    for name in _FILES:
        check_output(folder / name)
    # A report tells that all files belong together.
    (folder / "report.json").unlink(missing_ok=True)
    return folder


def _quiet(_phase: str, _done: int, _total: int) -> None:
    """Discard a progress report."""
