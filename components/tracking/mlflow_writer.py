"""The writer of one MLflow run, a step's or the whole pipeline's.

Importing this module imports no MLflow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.support.credentials import scrub
from qatline.components.tracking.store import Contact, translated

CURVES = "epoch"
"""Prefix of the curves on the run of a step; on the pipeline's run it is the step's name."""

_DIGEST_LIMIT = 36
_PARAMS_A_BATCH = 100
_METRICS_A_BATCH = 1000
_Point = tuple[str, float, int]


class MlflowWriter:
    """Writer for any MLflow run, a step's or the whole pipeline's.

    Texts are scrubbed of secrets; large lists go in batches. What the run holds already is not
    written again, so a record can be repeated.

    Args:
        client: an ``MlflowClient``.
        run_id: the run to write to.
        at: when the numbers were measured, in milliseconds; default: when they are recorded.

    Raises:
        TrackingError: from every method: the store is away or refuses.
    """

    def __init__(self, client: Any, run_id: str, *, at: int | None = None) -> None:
        self._client = client
        self._contact = Contact(client.tracking_uri)
        self._at = at
        self.run_id = run_id

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record params.

        One that the run holds already stays as it is, since params are immutable.
        """
        from mlflow.entities import Param

        with self._writing("the settings can't be recorded"):
            # One param that exists with another value would make the store refuse the whole batch.
            known = self._data().params
            items = []
            for name, value in params.items():
                if name not in known:
                    items.append(Param(name, scrub(str(value))))
            for batch in _batches(items, _PARAMS_A_BATCH):
                self._client.log_batch(self.run_id, params=batch)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record final numbers."""
        self._log_points([(name, value, 0) for name, value in metrics.items()])

    def log_history(self, history: Sequence[Mapping[str, float]], prefix: str = CURVES) -> None:
        """Record one point of each curve for each epoch, named ``<prefix>/<name>``."""
        points: list[_Point] = []
        for index, epoch in enumerate(history):
            step = int(epoch.get("epoch", index))
            for name, value in epoch.items():
                if name != "epoch" and isinstance(value, int | float):
                    points.append((f"{prefix}/{name}", value, step))
        self._log_points(points)

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Record one file."""
        with self._writing(f"{path.name} can't be recorded"):
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
        with self._writing("the data set can't be recorded"):
            self._client.log_inputs(
                self.run_id, datasets=[DatasetInput(dataset=dataset, tags=tags)]
            )
        self.set_tags({"data.fingerprint": info.fingerprint, "data.source": source})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Record tags."""
        from mlflow.entities import RunTag

        with self._writing("the tags can't be recorded"):
            items = [RunTag(name, scrub(str(value))) for name, value in tags.items()]
            for batch in _batches(items, _PARAMS_A_BATCH):
                self._client.log_batch(self.run_id, tags=batch)

    def end(self, status: str, end_time: int | None = None) -> None:
        """Close the run as FINISHED, FAILED or KILLED, at a time in milliseconds (now)."""
        with self._writing("the tracking run can't be closed"):
            self._client.set_terminated(self.run_id, status, end_time)

    def _log_points(self, points: Sequence[_Point]) -> None:
        from mlflow.entities import Metric

        measured = int(time.time() * 1000) if self._at is None else self._at
        with self._writing("the metrics can't be recorded"):
            known = self._known_points({name for name, _, _ in points})
            items = []
            for name, value, step in points:
                if (name, float(value), step) not in known:
                    items.append(Metric(name, float(value), measured, step))
            for batch in _batches(items, _METRICS_A_BATCH):
                self._client.log_batch(self.run_id, metrics=batch)

    def _known_points(self, names: set[str]) -> set[_Point]:
        """Return the points that an earlier record of the same left."""
        known: set[_Point] = set()
        for name in names & set(self._data().metrics):
            for point in self._client.get_metric_history(self.run_id, name):
                known.add((name, point.value, point.step))
        return known

    def _data(self) -> Any:
        return self._client.get_run(self.run_id).data

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        with translated(what):
            # MLflow itself would wait for a server that is away, call by call.
            self._contact.check()
            yield


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])
