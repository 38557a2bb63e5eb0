"""MLflow behind the ``StepTracker`` protocol.

Importing this module imports no MLflow; opening a run does (about 3 CPU seconds).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from components.data.info import DatasetInfo
from components.runtime.credentials import scrub
from components.store.fingerprints import library_versions
from components.tracking.model_names import logged_name
from components.tracking.store import probe, translated

# MLflow's own default is seven tries with growing pauses: minutes, for a server that went away.
# System metrics are noise here, and a uv project that happens to lie around is not what a logged
# model needs.
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    "MLFLOW_UV_AUTO_DETECT": "false",
}
_DIGEST_LIMIT = 36
_CHAMPION = "champion"
_DIGEST_TAG = "qatline.digest"
_PARAMS_A_BATCH = 100
_METRICS_A_BATCH = 1000


class MlflowWriter:
    """Writer for any MLflow run, a step's or the whole pipeline's.

    Texts are scrubbed of secrets; large lists go in batches.

    Args:
        client: an ``MlflowClient``.
        run_id: the run to write to.

    Raises:
        TrackingError: from every method: the store refuses.
    """

    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self.run_id = run_id

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record params.

        One that the run holds already stays as it is, since params are immutable.
        """
        from mlflow.entities import Param

        with translated("the settings can't be recorded"):
            # One param that exists with another value would make the store refuse the whole batch.
            known = self._client.get_run(self.run_id).data.params
            items = [
                Param(name, scrub(str(value)))
                for name, value in params.items()
                if name not in known
            ]
            for batch in _batches(items, _PARAMS_A_BATCH):
                self._client.log_batch(self.run_id, params=batch)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record final numbers."""
        self._log_points([(name, value, 0) for name, value in metrics.items()])

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Record one file."""
        with translated(f"{path.name} can't be recorded"):
            self._client.log_artifact(self.run_id, str(path), artifact_path=folder or None)

    def log_dataset(self, info: DatasetInfo) -> None:
        """Record the fingerprinted data set as the run's input."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source = scrub(info.source)
        dataset = Dataset(
            name=info.kind,
            digest=info.fingerprint[:_DIGEST_LIMIT],
            source_type="code",
            source=json.dumps({"tags": {"source": source}}),
        )
        tags = [InputTag(key="mlflow.data.context", value="training")]
        with translated("the data set can't be recorded"):
            self._client.log_inputs(
                self.run_id, datasets=[DatasetInput(dataset=dataset, tags=tags)]
            )
        self.set_tags({"data.fingerprint": info.fingerprint, "data.source": source})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Record tags."""
        from mlflow.entities import RunTag

        with translated("the tags can't be recorded"):
            items = [RunTag(name, scrub(str(value))) for name, value in tags.items()]
            for batch in _batches(items, _PARAMS_A_BATCH):
                self._client.log_batch(self.run_id, tags=batch)

    def _log_points(self, points: Sequence[tuple[str, float, int]]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        with translated("the metrics can't be recorded"):
            items = [Metric(name, float(value), now, step) for name, value, step in points]
            for batch in _batches(items, _METRICS_A_BATCH):
                self._client.log_batch(self.run_id, metrics=batch)


class MlflowRun(MlflowWriter):
    """One step's MLflow run; ``open_run`` opens it as a ``StepTracker``."""

    def __init__(self, mlflow: Any, run_id: str) -> None:
        super().__init__(mlflow.MlflowClient(), run_id)
        self._mlflow = mlflow

    def log_history(self, history: Sequence[Mapping[str, float]]) -> None:
        """Record one point of each curve for each epoch, named ``epoch/<name>``."""
        self._log_points(
            [
                (f"epoch/{name}", value, int(epoch.get("epoch", index)))
                for index, epoch in enumerate(history)
                for name, value in epoch.items()
                if name != "epoch" and isinstance(value, int | float)
            ]
        )

    def log_onnx(self, path: Path, name: str) -> None:
        """Record an ONNX model with its signature, without running it.

        Nothing here imports TensorFlow.
        """
        with translated(f"the ONNX model {path.name} can't be recorded"):
            self._log_model(path, name=logged_name(name))

    def register_champion(self, path: Path, model: str, digest: str) -> None:
        """Register an ONNX model as ``champion``, unless the champion is this file."""
        from mlflow.exceptions import MlflowException

        with translated(f"the champion of {model!r} can't be registered"):
            try:
                champion = self._client.get_model_version_by_alias(model, _CHAMPION)
            except MlflowException:  # no such model yet, or none of its versions is the champion
                champion = None
            if champion is not None and champion.tags.get(_DIGEST_TAG) == digest:
                return
            logged = self._log_model(path, name=logged_name(model), registered_model_name=model)
            version = str(logged.registered_model_version)
            self._client.set_model_version_tag(model, version, _DIGEST_TAG, digest)
            self._client.set_model_version_tag(model, version, "qatline.run_id", self.run_id)
            self._client.set_registered_model_alias(model, _CHAMPION, version)

    def _log_model(self, path: Path, **options: Any) -> Any:
        import onnx
        from mlflow import onnx as flavour

        model = onnx.load(str(path))
        versions = library_versions()
        requirements = [f"{p}=={versions[p]}" for p in ("onnx", "onnxruntime") if versions[p]]
        return flavour.log_model(
            model, signature=_signature(model), pip_requirements=requirements, **options
        )

    def close(self, status: str) -> None:
        """End the run as FINISHED or FAILED."""
        with translated("the tracking run can't be closed"):
            self._mlflow.end_run(status)


def open_run(step: str) -> MlflowRun:
    """Open the run that the environment asks for.

    See ``components.tracking.tracker`` for the contract.

    Raises:
        TrackingError: the store can't be reached or refuses.
    """
    probe(os.environ.get("MLFLOW_TRACKING_URI", ""))
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    with translated("the tracking run can't be opened"):
        import mlflow

        if os.environ.get("MLFLOW_RUN_ID"):
            # Never with a parent as well: MLflow would then reopen the run instead of making a
            # child.
            run = mlflow.start_run()
        else:
            parent = os.environ.get("QATLINE_PARENT_RUN_ID") or None
            experiment = os.environ.get("MLFLOW_EXPERIMENT_ID") or None
            if parent and experiment is None:
                experiment = mlflow.get_run(parent).info.experiment_id
            run = mlflow.start_run(
                run_name=step, parent_run_id=parent, experiment_id=experiment, tags=_context_tags()
            )
        tracker = MlflowRun(mlflow, run.info.run_id)
    tracker.set_tags({"qatline.step": step})
    return tracker


def _context_tags() -> dict[str, str]:
    """Return the tags that MLflow gives a run by itself.

    The address of a git repository may hold a token.
    """
    from mlflow.tracking.context.registry import resolve_tags

    return {name: scrub(str(value)) for name, value in resolve_tags().items()}


def _signature(model: Any) -> Any:
    """Return the graph's signature: input and output names, types and shapes.

    -1 for a free dimension.
    """
    import numpy as np
    import onnx
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    def schema(values: Any) -> Any:
        specs = []
        for value in values:
            tensor = value.type.tensor_type
            shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
            kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            specs.append(TensorSpec(kind, shape, value.name))
        return Schema(specs)

    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    return ModelSignature(inputs=schema(inputs), outputs=schema(model.graph.output))


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])
