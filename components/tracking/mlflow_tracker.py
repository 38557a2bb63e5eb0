"""MLflow behind the ``StepTracker`` protocol.

Importing this module imports no MLflow; opening a run does (about 3 CPU seconds).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from qatline.components.store.fingerprints import library_versions
from qatline.components.support.credentials import scrub
from qatline.components.support.model_names import logged_name
from qatline.components.tracking.mlflow_writer import MlflowWriter
from qatline.components.tracking.pipeline_run import pipeline_run
from qatline.components.tracking.signatures import onnx_signature
from qatline.components.tracking.store import open_client, translated
from qatline.components.tracking.tracker import NullTracker, RunRecorder, StepTimes


class MlflowRun(MlflowWriter):
    """One step's MLflow run; ``open_run`` opens it as a ``StepTracker``."""

    def __init__(
        self, mlflow: Any, run_id: str, parent: str | None = None, *, ended: int | None = None
    ) -> None:
        client = mlflow.MlflowClient()
        super().__init__(client, run_id, at=ended)
        self._mlflow = mlflow
        self._ended = ended
        self.pipeline: RunRecorder = NullTracker()
        if parent:
            self.pipeline = MlflowWriter(client, parent, at=ended)

    def log_onnx(self, path: Path, name: str) -> None:
        """Record an ONNX model with its signature, without running it.

        Nothing here imports TensorFlow.
        """
        with self._writing(f"the ONNX model {path.name} can't be recorded"):
            self._log_model(path, name=logged_name(name))

    def _log_model(self, path: Path, **options: Any) -> Any:
        import onnx
        from mlflow import onnx as flavour

        model = onnx.load(str(path))
        versions = library_versions()
        requirements = [f"{p}=={versions[p]}" for p in ("onnx", "onnxruntime") if versions[p]]
        return flavour.log_model(
            model, signature=onnx_signature(model), pip_requirements=requirements, **options
        )

    def close(self, status: str) -> None:
        """End the run as FINISHED or FAILED."""
        with self._writing("the tracking run can't be closed"):
            self._mlflow.end_run(status)
        if self._ended is not None:  # MLflow's own end_run knows only now
            self.end(status, self._ended)


def open_run(step: str, times: StepTimes | None = None) -> MlflowRun:
    """Open the run that the environment asks for.

    See ``qatline.components.tracking.tracker`` for the contract.

    Args:
        step: name of the step, which is the name of a new run.
        times: when the step ran, if that is past; a run that exists already keeps its start.

    Raises:
        TrackingError: the store can't be reached or refuses.
    """
    client = open_client(os.environ.get("MLFLOW_TRACKING_URI", ""))
    with translated("the tracking run can't be opened"):
        import mlflow

        if os.environ.get("MLFLOW_RUN_ID"):
            # Never with a parent as well: MLflow would then reopen the run instead of making a
            # child.
            run = mlflow.start_run()
            parent = run.data.tags.get("mlflow.parentRunId")
        else:
            parent, experiment = pipeline_run(client)
            made = _past_run(client, step, experiment, parent, times) if times else None
            run = mlflow.start_run(
                run_id=made,
                run_name=step,
                parent_run_id=parent,
                experiment_id=experiment,
                tags=_context_tags(),
            )
        tracker = MlflowRun(mlflow, run.info.run_id, parent, ended=times.ended if times else None)
    tracker.set_tags({"qatline.step": step})
    return tracker


def _past_run(
    client: Any, step: str, experiment: str | None, parent: str | None, times: StepTimes
) -> str:
    """Make the run of a step that began earlier, and return its id."""
    tags = _context_tags()
    if parent is not None:
        tags["mlflow.parentRunId"] = parent
    made = client.create_run(experiment or "0", times.started, tags, step)
    return str(made.info.run_id)


def _context_tags() -> dict[str, str]:
    """Return the tags that MLflow gives a run by itself.

    The address of a git repository may hold a token.
    """
    from mlflow.tracking.context.registry import resolve_tags

    return {name: scrub(str(value)) for name, value in resolve_tags().items()}
