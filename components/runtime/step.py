"""Execution of a step: look up the store, else execute, publish and track.

The result is published before it is tracked. If the tracking server fails late, the run fails, but
a resumed run reuses the step.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qat_lib.errors import StepError
from qat_lib.files.whole_files import folder_beside
from qatline.components.runtime.failures import reported_failure
from qatline.components.runtime.shown_outputs import (
    ConfusionArtifact,
    MetricsArtifact,
    show_metrics,
    show_outputs,
)
from qatline.components.runtime.steps import StepDefinition, load_step
from qatline.components.settings import Settings
from qatline.components.step_table import STEP_BY_NAME
from qatline.components.store.checkpoint_folder import checkpoint_folder
from qatline.components.store.directories import (
    MANIFEST_NAME,
    Manifest,
    describe,
    materialize,
    publish,
    read_step_manifest,
    verify_directory,
)
from qatline.components.store.fingerprints import (
    code_digest,
    library_versions,
    machine_identity,
    settings_files,
)
from qatline.components.store.step_store import StepStore, step_key
from qatline.components.support.disk_errors import as_storage_error
from qatline.components.support.events import EventProgress, NullProgress, emit
from qatline.components.support.process import (
    KFP_EXECUTOR_VARIABLE,
    collect_rarely,
    die_with_launcher,
)
from qatline.components.support.scrubbed_output import scrub_output
from qatline.components.support.turns import turn
from qatline.components.support.user_code import find_user_modules
from qatline.components.tracking.step_run import step_run
from qatline.components.tracking.tracked import log_outputs, log_settings
from qatline.components.workers.worker_config import read_worker_config
from qatline.components.workers.worker_group import step_workers


def run_component(
    step: str,
    *,
    settings: Mapping[str, Any],
    seed: int,
    inputs: Mapping[str, str],
    output: str,
    metrics_artifact: MetricsArtifact | None = None,
    confusion_artifact: ConfusionArtifact | None = None,
    page: str = "",
) -> dict[str, float]:
    """Run the step ``step``, or reuse the stored result of an identical execution.

    Args:
        step: name of the step; its function is ``<step>_step`` in its module in
            ``components/steps/``.
        settings: sections that the step reads, as plain values; missing sections have their
            defaults.
        seed: seed of the run.
        inputs: path of each input directory by parameter name.
        output: path of the output directory; missing or empty before, finished after.
        metrics_artifact: receives the step's metrics, such as a ``kfp.dsl.Metrics``.
        confusion_artifact: receives the confusion matrix (``Step.confusion``), such as a
            ``kfp.dsl.ClassificationMetrics``.
        page: destination of the step's page (``Step.page``); empty for none.

    Returns:
        The step's metrics.

    Raises:
        QatlineError: the step failed for a reason that the user can act on; an ``error`` event
            reports the same.
    """
    # Before the step's slow imports: a launcher killed meanwhile must not leave an orphan.
    die_with_launcher()
    if os.environ.get(KFP_EXECUTOR_VARIABLE):  # a process of its own, whose output becomes a log
        scrub_output()
        collect_rarely()
    find_user_modules()
    worker = read_worker_config()
    if worker is not None and worker.index > 0 and load_step(step).takes_checkpoints:
        # Only worker 0 uses the store, writes the output and reports failures.
        _take_part(_prepare(load_step(step), settings, seed, inputs))
        return {}
    with reported_failure(step, Path(output)):
        call = _prepare(load_step(step), settings, seed, inputs)
        manifest = _reuse_or_execute(call, Path(output))
        show_metrics(manifest.metrics, metrics_artifact)
        show_outputs(
            STEP_BY_NAME[step],
            Path(output),
            page=page,
            confusion=confusion_artifact,
            warn=EventProgress(step).warn,
        )
    return dict(manifest.metrics)


def stored_result(
    step: str, *, settings: Mapping[str, Any], seed: int, inputs: Mapping[str, str]
) -> Path | None:
    """Return the store's directory of an execution's result, or None.

    The files are not verified; ``run_component`` verifies them before use.

    Args:
        step: name of the step.
        settings: sections that the step reads, as plain values.
        seed: seed of the run.
        inputs: path of each input directory by parameter name.

    Raises:
        QatlineError: the arguments are wrong, or an input is not finished.
    """
    store = StepStore.from_environment()
    if store is None:
        return None
    call = _prepare(load_step(step), settings, seed, inputs)
    path = store.path(step, call.key)
    return path if (path / MANIFEST_NAME).is_file() else None


# Settings without effect on the result.
_WITHOUT_EFFECT = ("checkpoint_epochs",)


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A prepared execution: function, arguments, and key of the result."""

    definition: StepDefinition
    sections: Mapping[str, Settings]
    checked: Mapping[str, Settings]
    seed: int
    inputs: Mapping[str, Path]
    key: str

    @property
    def step(self) -> str:
        return self.definition.name

    def workers(self) -> AbstractContextManager[None]:
        if not self.definition.takes_checkpoints:
            return nullcontext()
        return step_workers(self.step, sections=self.sections, seed=self.seed, inputs=self.inputs)


def _prepare(
    definition: StepDefinition, settings: Mapping[str, Any], seed: int, inputs: Mapping[str, str]
) -> _Call:
    checked = definition.parse(settings)
    sections = {name: checked.pop(name) for name in definition.keyed}
    paths = definition.check_inputs(inputs)
    plain = {}
    for name, section in sections.items():
        plain[name] = section.model_dump(mode="json", exclude=set(_WITHOUT_EFFECT))
    key = step_key(
        definition.name,
        code=code_digest(plain),
        settings=plain,
        seed=int(seed) if definition.takes_seed else None,
        inputs={
            name: verify_directory(path, contents=False).digest for name, path in paths.items()
        },
        # External state enters the key by its digest, so that a new champion invalidates cached
        # results.
        files={**settings_files(plain), **definition.state(sections)},
        versions=library_versions(),
        machine=machine_identity() if STEP_BY_NAME[definition.name].machine_bound else None,
    )
    return _Call(
        definition=definition,
        sections=sections,
        checked=checked,
        seed=int(seed),
        inputs=paths,
        key=key,
    )


def _reuse_or_execute(call: _Call, output: Path) -> Manifest:
    started = time.monotonic()
    store = StepStore.from_environment()
    progress = EventProgress(call.step)
    emit("step_started", call.step, key=call.key)
    if store is None:
        manifest, status = _execute(call, output, progress), "executed"
    else:
        manifest, status = _through_store(call, store, progress)
        materialize(store.path(call.step, call.key), output)
    emit(
        "step_finished",
        call.step,
        key=call.key,
        status=status,
        seconds=time.monotonic() - started,
        # Of the whole process, imports and ended children included.
        cpu_seconds=sum(os.times()[:4]),
        metrics=manifest.metrics,
    )
    return manifest


def _through_store(call: _Call, store: StepStore, progress: EventProgress) -> tuple[Manifest, str]:
    """Return the stored result, or compute it under its lock, with the status.

    Other runs of the same key wait for the lock.
    """
    if found := store.find(call.step, call.key, warn=progress.warn):
        return found, "reused"
    final = store.path(call.step, call.key)
    # The turn comes first: a step that waits for it holds no result that others wait for.
    with (
        turn(alone=STEP_BY_NAME[call.step].timed),
        store.hold(call.step, call.key, lambda holder: emit("waiting", call.step, holder=holder)),
    ):
        # Another process may have computed it meanwhile. Damage was reported above.
        if found := store.find(call.step, call.key):
            return found, "reused"
        return _execute(call, final, progress), "executed"


def _execute(call: _Call, final: Path, progress: EventProgress) -> Manifest:
    """Call the step function in a work directory, publish the result as ``final`` and track it."""
    kept = checkpoint_folder(call.step, call.key, StepStore.from_environment())
    with (
        step_run(call.step, warn=progress.warn) as tracker,
        kept as checkpoints,
        _work(final) as work,
    ):
        log_settings(tracker, call.sections, seed=call.seed, key=call.key)
        started = time.monotonic()
        arguments: dict[str, Any] = {
            **call.inputs,
            **call.sections,
            **call.checked,
            "out": work,
            "progress": progress,
        }
        if call.definition.takes_seed:
            arguments["seed"] = call.seed
        if call.definition.takes_checkpoints:
            arguments["checkpoints"] = checkpoints
        with call.workers():
            metrics = call.definition.function(**arguments)
        # Before publishing: a step with invalid metrics must not enter the store.
        metrics = _checked(call.step, metrics, progress)
        seconds = time.monotonic() - started
        settings = {
            name: section.model_dump(mode="json") for name, section in call.sections.items()
        }
        manifest = describe(
            work, step=call.step, key=call.key, metrics=metrics, settings=settings, seconds=seconds
        )
        if not manifest.files:
            raise StepError(f"step {call.step} wrote nothing into its output directory")
        publish(work, final, manifest)
        # If another process published first, its result stands, and the next steps read it.
        manifest = read_step_manifest(final)
        log_outputs(tracker, call.step, final, manifest)
    return manifest


def _take_part(call: _Call) -> None:
    """Train as a worker other than 0, without output, tracking or reports."""
    with tempfile.TemporaryDirectory(prefix="qatline-worker-") as folder, call.workers():
        arguments = {**call.inputs, **call.sections, **call.checked, "progress": NullProgress()}
        call.definition.function(**arguments, out=Path(folder), seed=call.seed)


@contextmanager
def _work(final: Path) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            work = stack.enter_context(folder_beside(final))
        except OSError as error:
            raise as_storage_error(error, final) from error
        yield work


def _checked(step: str, metrics: Mapping[str, float], progress: EventProgress) -> dict[str, float]:
    """Return the finite metrics as floats; warn of others.

    KFP and JSON cannot represent NaN.
    """
    checked = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise StepError(
                f"step {step}: metric {name} must be a number, received {value!r}"
            ) from error
        if math.isfinite(number):
            checked[name] = number
        else:
            progress.warn(f"metric {name} of step {step} is {number} and is left out")
    return checked
