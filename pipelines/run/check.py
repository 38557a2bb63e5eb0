"""All checks of a run before its first step: everything that seconds can tell.

They import the user's code, read the first samples of the data, build the model, plan its
quantization and contact the stores. Nothing is trained, written or downloaded that a run would not
write at the same place.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.engines import cpu_kind, get_backend
from qat_lib.errors import ConfigError, DataError, TrackingError
from qat_lib.ptq import PtqRecipe
from qatline.components.data.array_checks import CHUNK_BYTES, first_samples
from qatline.components.data.array_source import ArraySource
from qatline.components.data.file_source import FileSource
from qatline.components.data.images import load_image, resize_array
from qatline.components.data.source import Samples, Source, deal
from qatline.components.data.tfrecord_source import is_record_file
from qatline.components.export.choice import choose_export, choose_integers
from qatline.components.registry.access import current_champion
from qatline.components.settings import DataSettings
from qatline.components.settings.source_settings import WITH_PATH
from qatline.components.step_table import STEPS
from qatline.components.steps.prepare_data import (
    check_targets,
    choose_task,
    make_preprocessing,
    open_source,
    training_weights,
)
from qatline.components.storage.storage import existing, local_path, open_storage
from qatline.components.storage.stored_file import StoredFile, is_archive, split_pattern
from qatline.components.store.step_store import STORE_VARIABLE
from qatline.components.support.credentials import scrub
from qatline.components.support.events import NullProgress
from qatline.components.support.frameworks import FRAMEWORKS
from qatline.components.support.user_code import check_options, import_callable
from qatline.components.tasks import check_numbers
from qatline.components.tracking.database import database_path, has_content
from qatline.components.tracking.store import open_client, probe, translated
from qatline.components.tracking.tracker import MODE_VARIABLE, URI_VARIABLE
from qatline.components.training.augmentation import chosen_augment
from qatline.components.training.framework import choose_framework
from qatline.components.training.quantization_choice import (
    known_cases,
    open_case,
    open_cases,
    read_spec,
)
from qatline.pipelines.config.run_config import ConfigReading, RunConfig
from qatline.pipelines.run.findings import Check, Findings
from qatline.pipelines.run.preflight import (
    BACKEND,
    DATA,
    MODEL,
    PACKAGES,
    PREFLIGHT,
    SPEC,
    WEIGHTS,
    references,
)
from qatline.pipelines.run.reuse import leading_stored
from qatline.pipelines.run.tracking import default_uri

# Samples of each part that are read.
_HEAD = 64
# Bytes up to which a file in S3 or an archive is fetched.
_FETCHED = 64 << 20
# Bytes of a local file up to which it is hashed, to predict what the store has.
_HASHED = 1 << 30
_DATA_KEYS = tuple(f"data.{name}" for name in DataSettings.model_fields if name != "preprocessing")
_READ_WHOLE = ("digits", "npz", "table", "keras")
# Samples that go through the model.
_RUN = 4


@dataclass(kw_only=True)
class _State:
    """Results of checks that later ones use.

    Attributes:
        stored: objects in S3 by location; futures, since the network is asked meanwhile.
    """

    cases: list[str] = field(default_factory=list)
    stored: dict[str, Future[StoredFile]] = field(default_factory=dict)
    tracking: Future[None] | None = None
    source: Any = None
    is_whole: bool = True
    task: Any = None
    preprocessing: Any = None
    framework: Any = None
    model: Any = None
    integers: dict[str, Any] = field(default_factory=dict)
    experiment: Any = None


def check_run(reading: ConfigReading, *, store: bool = True) -> Findings:
    """Check everything about a run that takes seconds.

    Args:
        reading: the config, with the mistakes in it.
        store: whether the run uses the step store.

    Returns:
        All mistakes, a summary, and the checks that did not run.
    """
    findings = Findings(config=reading.config)
    findings.add_problems(reading.problems)
    state = _State()
    with ThreadPoolExecutor(max_workers=4) as pool, tempfile.TemporaryDirectory() as scratch:
        findings.run(PREFLIGHT)
        findings.run(_checks(state, pool, Path(scratch), store=store))
        state.source = None  # before its files disappear
    return findings


def _checks(state: _State, pool: ThreadPoolExecutor, scratch: Path, *, store: bool) -> list[Check]:
    """Return the checks in order; slow answers of the network are awaited at the end."""

    def check(
        name: str,
        function: Callable[..., None],
        *,
        reads: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        **more: Any,
    ) -> Check:
        return Check(
            name=name,
            reads=reads,
            after=after,
            function=lambda findings: function(findings, state, **more),
        )

    return [
        check("stores", _ask_stores, after=(PACKAGES,), pool=pool),
        check("import of user code", _import_code, after=(PACKAGES,)),
        check("options of user code", _check_options, after=(PACKAGES,)),
        check("cases", _open_cases, after=(PACKAGES,)),
        check("data", _read_data, reads=_DATA_KEYS, after=(PACKAGES, DATA), scratch=scratch),
        check("task", _choose_task, reads=("task", "data.classes"), after=("data",)),
        check("targets", _check_all_targets, after=("task",)),
        check("preprocessing", _preprocess, reads=("data.preprocessing",), after=("data",)),
        check(
            "model",
            _build,
            reads=("model.name", "model.options", "model.framework"),
            after=(PACKAGES, MODEL, "task"),
        ),
        check("model and data", _fit_together, after=("model", "task")),
        check("weights", _load_weights, reads=("model.weights",), after=("model", WEIGHTS)),
        check(
            "forward pass",
            _forward,
            after=("model and data", "preprocessing", "targets"),
        ),
        check("export", _choose_export, reads=("export", "engine"), after=(BACKEND,)),
        check(
            "plan",
            _plan,
            reads=("quantization.spec", "quantization.mode"),
            after=("model", SPEC),
        ),
        check("augmentation and class weights", _check_training, after=("task",)),
        check("gate", _check_gate, reads=("gate",), after=("task",)),
        check(
            "tracking store", _open_tracking, reads=("tracking.uri", "tracking"), after=("stores",)
        ),
        check("registry", _open_registry, reads=("registry",), after=("tracking store",)),
        check("files in S3", _await_files, after=("stores",)),
        check("step store", _predict, reads=_DATA_KEYS, after=("registry",), store=store),
    ]


# Stores


def _ask_stores(findings: Findings, state: _State, *, pool: ThreadPoolExecutor) -> None:
    """Contact S3 and the tracking server in threads."""
    config = findings.config
    for key, location in _locations(config):
        if location.startswith("s3://"):
            is_folder = key == "data.path" and _is_remote_folder(config.data)
            state.stored[location] = pool.submit(_describe, location, key, is_folder)
    if os.environ.get(MODE_VARIABLE) != "off":
        state.tracking = pool.submit(probe, _tracking_uri(config))


def _locations(config: RunConfig) -> Iterator[tuple[str, str]]:
    yield "data.path", config.data.path or ""
    yield "model.name", config.model.name
    yield "model.weights", config.model.weights or ""


def _is_remote_folder(data: DataSettings) -> bool:
    path = data.path or ""
    is_file = is_archive(path) or is_record_file(path)
    return "folder" in WITH_PATH.get(data.kind, "") and "://" in path and not is_file


def _describe(location: str, key: str, is_folder: bool) -> StoredFile:
    storage = open_storage(location)
    if not is_folder:
        return existing(location, storage, key=key)
    folder, _ = split_pattern(location)
    listed = storage.list(folder.rstrip("/") + "/", most=1)
    if not listed:
        raise DataError(f"{storage.missing(location)}: correct {key}")
    return listed[0]


def _await_files(findings: Findings, state: _State) -> None:
    for key, location in _locations(findings.config):
        if location in state.stored:
            with findings.of(key):
                state.stored[location].result()
    reached = [name for name, each in state.stored.items() if each.exception() is None]
    if reached:
        findings.facts["S3"] = ", ".join(reached)


def _tracking_uri(config: RunConfig) -> str:
    output = Path(config.output)
    return config.tracking.uri or os.environ.get(URI_VARIABLE) or default_uri(output)


def _open_tracking(findings: Findings, state: _State) -> None:
    """Check the tracking store and its artifact location, without changes."""
    config = findings.config
    if state.tracking is None:
        findings.facts["tracking"] = "off"
        return
    uri = _tracking_uri(config)
    try:
        state.tracking.result()
        new = _is_new(uri)
        if new or uri == default_uri(Path(config.output)):
            findings.facts["tracking"] = f"{scrub(uri)}{' (new)' if new else ''}"
            return
        client = open_client(uri)
        with translated(f"the tracking store {scrub(uri)} can't be used", uri):
            state.experiment = client.get_experiment_by_name(config.tracking.experiment)
    except TrackingError as error:
        if config.tracking.required:
            raise
        findings.skip("tracking.uri")
        findings.notes.append(f"the run is not tracked: {error}")
        return
    findings.facts["tracking"] = f"{scrub(uri)}, experiment {config.tracking.experiment}"
    if state.experiment is None:
        return
    if state.experiment.lifecycle_stage != "active":
        raise TrackingError(
            f"tracking.experiment: the experiment {config.tracking.experiment!r} was deleted. "
            "Restore it, or choose another one."
        )
    location = str(state.experiment.artifact_location or "")
    if location.startswith("s3://") and "MLFLOW_S3_ENDPOINT_URL" not in os.environ:
        with findings.of("tracking.experiment"):
            # Write an object to S3 and remove it.
            storage = open_storage(location)
            target = f"{location.rstrip('/')}/qatline-check-{uuid.uuid4().hex}"
            with tempfile.NamedTemporaryFile() as empty:
                storage.put(Path(empty.name), target)
            storage.remove(target)
        findings.facts["S3"] = f"{location} can be written"


def _is_new(uri: str) -> bool:
    path = database_path(uri)
    return path is not None and not has_content(path)


def _open_registry(findings: Findings, state: _State) -> None:
    name = findings.config.registry.name
    if name is None:
        return
    if state.tracking is None:
        findings.notes.append("registry.name has no effect: tracking is off")
        return
    if _is_new(_tracking_uri(findings.config)):
        findings.facts["registry"] = f"{name}: no champion yet"
        return
    from qatline.components.registry.mlflow_registry import open_registry

    with _environment(findings.config):
        champion = current_champion(open_registry(name))
    found = "no champion yet" if champion is None else f"champion is version {champion.number}"
    findings.facts["registry"] = f"{name}: {found}"
    if champion is None and findings.config.retrain.start == "champion":
        findings.notes.append("retrain.start=champion: training begins from scratch")


@contextmanager
def _environment(config: RunConfig) -> Iterator[None]:
    """Set the environment of the run's steps."""
    values = {STORE_VARIABLE: str(Path(config.output) / "store")}
    if os.environ.get(MODE_VARIABLE) != "off":
        uri = _tracking_uri(config)
        # A new database would be created by a look at it.
        tracked = not _is_new(uri)
        values |= {URI_VARIABLE: uri, MODE_VARIABLE: "required" if tracked else "off"}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


# User code


def _import_code(findings: Findings, state: _State) -> None:  # noqa: ARG001
    for key, reference in references(findings.config):
        if reference not in findings.broken:
            with findings.of(key):
                findings.broken.add(reference)
                import_callable(key, reference)
                findings.broken.discard(reference)


def _check_options(findings: Findings, state: _State) -> None:  # noqa: ARG001
    """Compare the options of callbacks, optimizers, schedules and augmentations with signatures."""
    config = findings.config
    given = {
        "optimizer": FRAMEWORKS[config.model.framework].optimizer_arguments,
        "schedule": ("learning_rate", "steps"),
        "augment": ("seed",),
    }
    for section in (config.training, config.qat):
        for key, reference, options in section.references():
            full = f"{section.section}.{key}"
            if reference not in findings.broken:
                with findings.of(full, blocks=False):
                    check_options(
                        full,
                        reference,
                        import_callable(full, reference),
                        options,
                        given=given.get(key, ()),
                        positional=2 if key == "augment" else 0,
                    )


def _open_cases(findings: Findings, state: _State) -> None:
    for name in findings.config.quantization.cases:
        is_known = ":" in name or name in known_cases()  # others were reported with the config
        if is_known and name not in findings.broken:
            with findings.of("quantization.cases"):
                open_case(name)
                state.cases.append(name)


# Data and task


def _read_data(findings: Findings, state: _State, *, scratch: Path) -> None:
    """Read the first samples of the data."""
    data = findings.config.data
    if (reason := _unreadable(data, state)) is not None:
        findings.notes.append(reason)
        findings.skip("data that is not read")
        return
    source = open_source(data, scratch, NullProgress(), findings.config.seed, _HEAD)
    state.source, state.is_whole = _readable(source, data)
    inputs = ", ".join(f"{name} {each.dtype} {each.shape}" for name, each in source.inputs.items())
    counts = ", ".join(f"{part} {len(y):,}" for part, y in source.targets.items())
    findings.facts["data"] = f"{source.description}: {inputs}"
    if state.is_whole:
        findings.facts["samples"] = counts
    if not (state.is_whole and _is_small(source)):
        findings.notes.append(
            f"of the data, only the first samples were read ({_HEAD} of each part)"
        )


def _unreadable(data: DataSettings, state: _State) -> str | None:
    """Return the reason for not reading the data, if any."""
    path = data.path or ""
    if data.kind == "keras" and not _is_cached(data.name or ""):
        return f"keras.datasets.{data.name} was not read: the run downloads it"
    if data.kind == "huggingface" and not path:
        return f"{data.name} was not read: the run downloads it from the hub"
    if data.kind not in WITH_PATH or not path:
        return None
    if _is_remote_folder(data):
        state.stored[path].result()
        return f"{path} was not read: the run fetches its images"
    size = state.stored[path].result().size if "://" in path else 0
    if is_archive(path) and "://" not in path:
        size = Path(path).expanduser().stat().st_size
    if size > _FETCHED:
        return f"{path} was not read: it has {size >> 20:,} MiB, which the run fetches or unpacks"
    return None


def _is_cached(name: str) -> bool:
    """Return whether a data set of Keras is on this machine."""
    import keras

    folder = Path(keras.config.keras_home() if hasattr(keras.config, "keras_home") else "~/.keras")
    wanted = name.replace("_", "")
    for path in (folder.expanduser() / "datasets").glob("*"):
        plain = path.name.replace("-", "").replace("_", "")
        if plain.startswith(wanted) and not plain.removeprefix(wanted)[:1].isdigit():
            return True
    return False


def _is_small(source: Source) -> bool:
    return isinstance(source, ArraySource) and all(
        x.nbytes <= CHUNK_BYTES for part in source.parts.values() for x in part.inputs.values()
    )


def _readable(source: Source, data: DataSettings) -> tuple[Source, bool]:
    """Return the source without what was not read, and whether all targets are in it."""
    if not isinstance(source, ArraySource):
        return source, False
    large = any(y.nbytes > CHUNK_BYTES for y in source.targets.values())
    path = Path(data.path or "").expanduser()
    if data.kind == "table" and "://" not in str(path):
        large = large or path.stat().st_size > CHUNK_BYTES
    if not large:
        in_memory = not any(isinstance(y, np.memmap) for y in source.targets.values())
        return source, data.kind in _READ_WHOLE or (data.kind == "python" and in_memory)
    parts = {name: first_samples(part, _HEAD) for name, part in source.parts.items()}
    return replace(source, parts=parts), False


def _choose_task(findings: Findings, state: _State) -> None:
    config, source = findings.config, state.source
    # The first rows of a large source may lack classes: only named ones are certain.
    are_named = config.data.classes or (source.classes and config.data.kind != "table")
    try:
        is_whole = state.is_whole or not are_named
        state.task = choose_task(source, config.data, config.task, is_whole=is_whole)
        is_known = not state.task.data.classes
    except DataError:
        if state.is_whole or are_named:
            raise
        is_known = False
    if not (is_known or state.is_whole or are_named):
        findings.notes.append(
            "the classes are known after all targets are read; set data.classes to check the model"
        )
        findings.skip("data.classes")
        return
    known = len(state.task.data.classes)
    findings.facts["task"] = state.task.data.task + (f", {known} classes" if known else "")
    findings.facts["task"] += f", by {state.task.primary.label}"


def _check_all_targets(findings: Findings, state: _State) -> None:
    """Check the targets of each part by itself, and the split."""
    config, source, task = findings.config, state.source, state.task
    right = True
    for part in source.targets:
        only = replace(source, parts={part: source.parts[part]})
        with findings.of("data.path", blocks=part == "train"):
            before = len(findings.mistakes)
            _, shape = check_targets(task, only)
            # The task of the other parts expects the shape of the training targets.
            if part == "train":
                task.data = replace(task.data, target_shape=shape)
        right = right and len(findings.mistakes) == before
    if right and state.is_whole:
        strata, _ = check_targets(task, source)
        classes = task.data.classes if strata else ()
        labels = strata or {part: np.zeros(len(y), np.int64) for part, y in source.targets.items()}
        with findings.of("data", blocks=False):
            dealt = deal(labels, config.data, seed=config.seed, classes=classes)
            counts = (f"{split} {len(each.indices):,}" for split, each in dealt.items())
            findings.facts["samples"] = ", ".join(counts)
            training_weights(source, dealt["train"])


def _preprocess(findings: Findings, state: _State) -> None:
    source = state.source
    count = min(_HEAD, len(source.targets["train"]))
    samples = Samples(part="train", indices=np.arange(count))
    with findings.of("data.preprocessing"):
        state.preprocessing = make_preprocessing(source, findings.config.data, samples)


# Model


def _local(findings: Findings, state: _State, key: str, location: str) -> str | None:
    """Return the local path of a file; None if it is large and in S3."""
    if not location.startswith("s3://"):
        return location
    if (size := state.stored[location].result().size) > _FETCHED:
        findings.notes.append(f"{key}: {location} was not read: it has {size >> 20:,} MiB")
        return None
    return str(local_path(location, key=key))


def _build(findings: Findings, state: _State) -> None:
    settings, task = findings.config.model, state.task
    state.framework = framework = choose_framework(settings.framework)
    framework.make_deterministic(findings.config.seed)
    name = _local(findings, state, "model.name", settings.name)
    if name is None:
        findings.skip("model.name")
        return
    settings = settings.model_copy(update={"name": name})
    state.model = framework.build_model(settings, task.data.shapes, task)
    findings.facts["model"] = (
        f"{findings.config.model.name} ({framework.traits.title}), "
        f"{framework.parameters(state.model):,} parameters"
    )


def _fit_together(findings: Findings, state: _State) -> None:
    with findings.of("model.name"):
        state.framework.check_model(state.model, state.task.data.shapes, state.task)


def _load_weights(findings: Findings, state: _State) -> None:
    weights = findings.config.model.weights
    if weights in (None, "imagenet"):
        return
    path = _local(findings, state, "model.weights", str(weights))
    if path is not None:
        state.framework.load_weights(state.model, path)


def _forward(findings: Findings, state: _State) -> None:
    """Run the model on samples of the data, and compute the metrics and the loss."""
    source, task, framework = state.source, state.task, state.framework
    inputs = _first_inputs(source, state.preprocessing)
    outputs = None
    with findings.of("model.name"):
        if inputs is not None:
            (outputs,) = framework.predict(state.model, [inputs])
            check_numbers(outputs, "the model with its first weights")
    if outputs is None:
        return
    targets = task.check_targets(source.targets["train"][:_RUN], "train targets")
    with findings.of("task.name"):
        task.summarize(task.measure(outputs, targets))
    with findings.of("task.name"):
        smoothing = findings.config.training.label_smoothing
        framework.mean_loss(state.model, task, targets, outputs, smoothing)


def _first_inputs(source: Source, preprocessing: Any) -> Any:
    """Return the model's inputs for the first samples; None for other kinds of sources."""
    if isinstance(source, FileSource):
        size = source.image_shape[:2] if source.resized else None
        paths = source.parts["train"].paths[:_RUN]
        images = [load_image(source.folder / path, preprocessing.color, size) for path in paths]
        return preprocessing.apply(np.stack(images))
    if not isinstance(source, ArraySource):
        return None
    raw = {}
    for name, x in source.parts["train"].inputs.items():
        info = source.inputs[name]
        raw[name] = np.asarray(x[:_RUN]).astype(info.dtype)
        if source.resize(name):
            raw[name] = resize_array(raw[name], (info.shape[0], info.shape[1]))
    return preprocessing.apply(raw if len(raw) > 1 else next(iter(raw.values())))


# Quantization, engine and gate


def _choose_export(findings: Findings, state: _State) -> None:
    config = findings.config
    choice = choose_export(config.export, config.engine)
    integers = choose_integers(config.quantization, config.export, config.engine)
    backend = get_backend(integers["backend"])
    cpu = cpu_kind() if config.engine.cpu == "auto" else config.engine.cpu
    where = f", {cpu} CPU" if backend.supports("cpu") else ""
    state.integers = integers
    findings.facts["engine"] = (
        f"{backend.title} {backend.version().partition('-')[0]}{where}; export for {choice.target}"
    )


def _plan(findings: Findings, state: _State) -> None:
    config = findings.config
    # Every backend knows the same layers.
    integers = state.integers or {"backend": "tensorrt"}
    chosen = config.quantization.model_copy(update={"cases": state.cases})
    recipe = PtqRecipe(mode=chosen.mode, cases=open_cases(chosen, state.task), **integers)
    spec = read_spec(config.quantization)
    with findings.of("quantization.spec" if spec else "quantization"):
        plan = recipe.plan(state.framework.bare(state.model), spec)
        findings.facts["plan"] = (
            f"{len(plan.wrapped)} layers quantized, {len(plan.skipped)} not; "
            f"{len(plan.quantizers)} quantizers"
        )


def _check_training(findings: Findings, state: _State) -> None:
    """Check that augmentation and class weights fit the task."""
    task = state.task
    for schedule in (findings.config.training, findings.config.qat):
        key = f"{schedule.section}.augment"
        with findings.of(key, blocks=False):
            chosen_augment(schedule, task)
        key = f"{schedule.section}.class_weights"
        if schedule.class_weights is not None and state.is_whole:
            with findings.of(key, blocks=False):
                task.class_weights(schedule.class_weights, state.source.targets["train"], key)


def _check_gate(findings: Findings, state: _State) -> None:
    """Reject bounds that no share can reach."""
    gate, metric = findings.config.gate, state.task.primary
    if not metric.share:
        return
    for name in ("required", "required_per_class", "max_drop"):
        value = getattr(gate, name)
        if value is not None and value > 1:
            with findings.of(f"gate.{name}", blocks=False):
                raise ConfigError(
                    f"gate.{name}: {metric.label} is a share in [0, 1], received {value:g}. Set "
                    f"{value / 100:g} for {value:g} %."
                )


# Step store


def _predict(findings: Findings, state: _State, *, store: bool) -> None:  # noqa: ARG001
    """Predict the steps that the store replaces."""
    config = findings.config
    if not store:
        findings.facts["store"] = "not used"
        return
    path = Path(config.data.path or "").expanduser()
    if config.data.kind in WITH_PATH and path.is_file() and path.stat().st_size > _HASHED:
        findings.notes.append(
            f"reuse was not predicted: the run would hash {path}, {path.stat().st_size >> 30} GiB"
        )
        return
    with _environment(config):
        found = leading_stored(STEPS, config.sections(), seed=config.seed)
    names = [step.name for step in STEPS]
    reused, rest = names[: len(found)], names[len(found) :]
    if not rest:
        findings.facts["store"] = "reuses every step"
    elif not reused:
        findings.facts["store"] = "reuses nothing"
    else:
        findings.facts["store"] = f"reuses {', '.join(reused)}; runs {rest[0]}"
    if rest[1:]:
        findings.facts["store"] += "; others depend on its result" if reused else ""
