"""MLflow run of a step or of the whole pipeline, and its entries.

A new kind of entry is one class in this module. Importing the module does not import MLflow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.store.fingerprints import library_versions
from qatline.components.support.credentials import scrub
from qatline.components.support.model_names import logged_name
from qatline.components.tracking.store import Contact, translated

# Limits of MLflow: characters of a data set's digest, entries of a request.
_DIGEST_LIMIT = 36
_PARAMS_A_BATCH = 100
_METRICS_A_BATCH = 1000
_Point = tuple[str, float, int]


class MlflowRun:
    """Writer of one MLflow run.

    Texts are scrubbed of secrets; large lists are written in batches. Existing values are not
    written again, so that recording is idempotent.

    Args:
        client: an ``MlflowClient``.
        run_id: id of the run.
        at: time of the metrics and of the end, in milliseconds; default: the time of the call.
    """

    def __init__(self, client: Any, run_id: str, *, at: int | None = None) -> None:
        self.client = client
        self.run_id = run_id
        self.at = at
        self._contact = Contact(client.tracking_uri)

    def record(self, entry: Entry) -> None:
        """Write an entry.

        Raises:
            TrackingError: the store is unreachable or refuses.
        """
        with self._writing(f"{entry.what} can't be recorded"):
            entry.write(self)

    def end(self, status: str) -> None:
        """Close the run as FINISHED, FAILED or KILLED.

        Raises:
            TrackingError: the store is unreachable or refuses.
        """
        with self._writing("the tracking run can't be closed"):
            self.client.set_terminated(self.run_id, status, self.at)

    def data(self) -> Any:
        """Return the stored params, metrics and tags."""
        return self.client.get_run(self.run_id).data

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        with translated(what):
            # Fail early: MLflow would wait for an unreachable server in every call.
            self._contact.check()
            yield


class Entry(Protocol):
    """A record for a run."""

    @property
    def what(self) -> str:
        """Name of the entry in messages."""

    def write(self, run: MlflowRun) -> None:
        """Write the entry to a run; ``MlflowRun.record`` translates the errors."""


@dataclass(frozen=True)
class Params:
    """Flat settings with their prefixes.

    Existing params keep their values, since params are immutable.
    """

    values: Mapping[str, Any]
    what: ClassVar[str] = "the settings"

    def write(self, run: MlflowRun) -> None:
        """Write the params that the run lacks."""
        from mlflow.entities import Param

        # The store refuses a whole batch if one param exists with another value.
        known = run.data().params
        items = [Param(k, scrub(str(v))) for k, v in self.values.items() if k not in known]
        for batch in _batches(items, _PARAMS_A_BATCH):
            run.client.log_batch(run.run_id, params=batch)


@dataclass(frozen=True)
class Tags:
    """Texts by name."""

    values: Mapping[str, str]
    what: ClassVar[str] = "the tags"

    def write(self, run: MlflowRun) -> None:
        """Write the tags."""
        from mlflow.entities import RunTag

        items = [RunTag(name, scrub(str(value))) for name, value in self.values.items()]
        for batch in _batches(items, _PARAMS_A_BATCH):
            run.client.log_batch(run.run_id, tags=batch)


@dataclass(frozen=True)
class Metrics:
    """Final numbers."""

    values: Mapping[str, float]
    what: ClassVar[str] = "the metrics"

    def write(self, run: MlflowRun) -> None:
        """Write the numbers that differ from the stored ones."""
        _write_points(run, [(name, value, 0) for name, value in self.values.items()])


@dataclass(frozen=True)
class Curves:
    """Curves ``<prefix>/<name>`` with one point per epoch.

    Each mapping contains the values of an epoch and its number as ``epoch``. The prefix is
    ``epoch`` on a step's run and the step's name on the pipeline's run.
    """

    epochs: Sequence[Mapping[str, float]]
    prefix: str = "epoch"
    what: ClassVar[str] = "the metrics"

    def write(self, run: MlflowRun) -> None:
        """Write the points that the run lacks."""
        points: list[_Point] = []
        for index, epoch in enumerate(self.epochs):
            step = int(epoch.get("epoch", index))
            for name, value in epoch.items():
                if name != "epoch" and isinstance(value, int | float):
                    points.append((f"{self.prefix}/{name}", value, step))
        _write_points(run, points)


@dataclass(frozen=True)
class Artifact:
    """A file, below ``folder`` of the run's artifacts."""

    path: Path
    folder: str = ""

    @property
    def what(self) -> str:
        """Name of the file."""
        return self.path.name

    def write(self, run: MlflowRun) -> None:
        """Upload the file."""
        run.client.log_artifact(run.run_id, str(self.path), artifact_path=self.folder or None)


@dataclass(frozen=True)
class DatasetInput:
    """The data set read or created by a step."""

    info: DatasetInfo
    what: ClassVar[str] = "the data set"

    def write(self, run: MlflowRun) -> None:
        """Write the data set as the run's input, and its full fingerprint as a tag."""
        from mlflow.entities import Dataset, InputTag
        from mlflow.entities import DatasetInput as Input

        source = scrub(self.info.source)
        dataset = Dataset(
            name=self.info.kind,
            digest=self.info.fingerprint[:_DIGEST_LIMIT],
            source_type="code",
            source=json.dumps({"tags": {"source": source}}),
        )
        tags = [InputTag(key="mlflow.data.context", value="training")]
        run.client.log_inputs(run.run_id, datasets=[Input(dataset=dataset, tags=tags)])
        Tags({"data.fingerprint": self.info.fingerprint, "data.source": source}).write(run)


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX model with the signature of its graph; the model is not executed."""

    path: Path

    @property
    def what(self) -> str:
        """Kind and name of the file."""
        return f"the ONNX model {self.path.name}"

    def write(self, run: MlflowRun) -> None:
        """Upload the model as an output of the run."""
        import onnx
        from mlflow import onnx as flavour

        model, versions = onnx.load(str(self.path)), library_versions()
        source = run.client.get_run(run.run_id)
        # MLflow would use the experiment of the process's active run, but there is none.
        made = run.client.create_logged_model(
            source.info.experiment_id,
            name=logged_name(self.path.stem),
            source_run_id=run.run_id,
            params=source.data.params,
        )
        flavour.log_model(
            model,
            model_id=made.model_id,
            run_id=run.run_id,
            signature=onnx_signature(model),
            pip_requirements=[
                f"{p}=={versions[p]}" for p in ("onnx", "onnxruntime") if versions[p]
            ],
        )


def onnx_signature(model: Any) -> Any:
    """Return the input and output names, types and shapes of a loaded graph.

    Free dimensions are -1. The model is not executed.
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

    # Older exporters list initializers among the graph's inputs.
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    return ModelSignature(inputs=schema(inputs), outputs=schema(model.graph.output))


def _write_points(run: MlflowRun, points: Sequence[_Point]) -> None:
    """Write the points that earlier records of the run do not contain."""
    from mlflow.entities import Metric

    measured = int(time.time() * 1000) if run.at is None else run.at
    known: set[_Point] = set()
    for name in {name for name, _, _ in points} & set(run.data().metrics):
        for point in run.client.get_metric_history(run.run_id, name):
            known.add((name, point.value, point.step))
    items = []
    for name, value, step in points:
        if (name, float(value), step) not in known:
            items.append(Metric(name, float(value), measured, step))
    for batch in _batches(items, _METRICS_A_BATCH):
        run.client.log_batch(run.run_id, metrics=batch)


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])
