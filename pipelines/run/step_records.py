"""MLflow runs of steps, written by the launcher from the results in the store.

Steps on one machine therefore do not need MLflow, and a run looks the same whether its steps were
executed or reused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qat_lib.errors import QatlineError
from qatline.components.runtime.steps import load_step
from qatline.components.store.directories import read_step_manifest
from qatline.components.support.events import emit
from qatline.components.tracking.mlflow_run import MlflowRun
from qatline.components.tracking.pipeline_run import children
from qatline.components.tracking.step_run import open_run
from qatline.components.tracking.store import translated
from qatline.components.tracking.tracked import KEY_TAG, log_outputs, log_settings
from qatline.components.tracking.tracker import StepTimes, StepTracker
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.run.collect import (
    finished_steps,
    link_artifacts,
    step_times,
    stopped_steps,
)
from qatline.pipelines.run.event_tail import EventTail, file_size
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.result import FinishedStep
from qatline.pipelines.steps import STEP_ARTIFACTS

_STATUS_TAG = "qatline.status"  # of a finished step: executed or reused
_PAUSE = 0.5  # seconds between two reads of the events
_PATIENCE = 5.0  # seconds for the last record; a terminating launcher is killed after ten


class StepRecords:
    """Records of the steps below the pipeline's run.

    Args:
        client: an ``MlflowClient``.
        pipeline: run of the pipeline.
        experiment: id of its experiment.
        folder: folder of the run.
        config: config of the run.
    """

    def __init__(
        self,
        client: Any,
        pipeline: MlflowRun,
        experiment: str,
        folder: RunFolder,
        config: RunConfig,
    ) -> None:
        self._client = client
        self._pipeline = pipeline
        self._experiment = experiment
        self._folder = folder
        self._config = config
        self._attempt = file_size(folder.events_file)

    @contextmanager
    def following(self, outputs: Path) -> Iterator[None]:
        """Record each step of the block at its end.

        Failures are warnings: ``record`` is called again at the end of the run.

        Args:
            outputs: folder of the outputs of this attempt.
        """
        tail, ended = EventTail.from_end(self._folder.events_file), threading.Event()
        thread = threading.Thread(
            target=self._follow, args=(tail, outputs, ended), name="step-records", daemon=True
        )
        thread.start()
        patience: float | None = _PATIENCE
        try:
            yield
            patience = None
        finally:
            ended.set()
            thread.join(patience)

    def record(self, steps: Iterable[FinishedStep], artifacts: Mapping[str, Path]) -> list[str]:
        """Record the finished steps that the store lacks; return their names.

        Args:
            steps: the steps; those without an artifact are ignored.
            artifacts: output directory of each step, by the artifact's name.

        Raises:
            StepError: a JSON file is malformed.
            TrackingError: the store is unreachable or refuses.
        """
        recorded = []
        with translated("the steps can't be recorded"):
            runs = children(self._client, self._experiment, self._pipeline.run_id)
            known = {run.data.tags.get(KEY_TAG) for run in runs if run.info.status == "FINISHED"}
            times = step_times(self._folder)
            for step in steps:
                directory = artifacts.get(STEP_ARTIFACTS.get(step.name, ""))
                if directory is None or (manifest := read_step_manifest(directory)).key in known:
                    continue
                self._remove_unfinished(step.name, runs)
                own, tracker = self._open(
                    step.name, manifest.key, times.get(step.name), {_STATUS_TAG: step.status}
                )
                log_outputs(tracker, step.name, directory, manifest)
                own.end("FINISHED")
                recorded.append(step.name)
        return recorded

    def record_stopped(self, status: str) -> None:
        """Record the steps of this attempt that started but did not finish.

        Args:
            status: ``FAILED`` or ``KILLED``.

        Raises:
            TrackingError: the store is unreachable or refuses.
        """
        events = EventTail(path=self._folder.events_file, offset=self._attempt)
        for event in stopped_steps(events.read()):
            times = StepTimes(started=int(event["time"] * 1000), ended=int(time.time() * 1000))
            own, _ = self._open(event["step"], event["key"], times, {})
            own.end(status)

    def _follow(self, tail: EventTail, outputs: Path, ended: threading.Event) -> None:
        last = False
        while not last:
            # One more read after the end, for events written since the previous read.
            last = ended.wait(_PAUSE)
            for step in finished_steps(tail.read()):
                try:
                    self.record([step], link_artifacts(self._folder, outputs))
                except QatlineError as error:
                    emit("warning", step.name, message=f"the step is not recorded yet: {error}")

    def _open(
        self, step: str, key: str, times: StepTimes | None, tags: Mapping[str, str]
    ) -> tuple[MlflowRun, StepTracker]:
        """Open a step's run and record its settings."""
        own, pipeline = open_run(step, times, tags)
        tracker = StepTracker(own, pipeline)
        definition, given = load_step(step), self._config.pipeline_parameters()
        sections = definition.parse({name: given.get(name, {}) for name in definition.sections})
        keyed = {name: sections[name] for name in definition.keyed}
        log_settings(tracker, keyed, seed=self._config.seed, key=key)
        return own, tracker

    def _remove_unfinished(self, step: str, runs: Iterable[Any]) -> None:
        """Remove a step's runs left by an interrupted recording."""
        for run in runs:
            tags = run.data.tags
            unfinished = run.info.status != "FINISHED" and _STATUS_TAG in tags
            if unfinished and tags.get("qatline.step") == step:
                self._client.delete_run(run.info.run_id)
