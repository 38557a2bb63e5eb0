"""A tracker that remembers what it is told."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qat_lib.errors import TrackingError
from qatline.components.artifacts.data_info import DatasetInfo


class RecordingTracker:
    """A tracker that remembers; ``fail`` makes every call fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.fail = False
        self.closed: str | None = None
        self.whole: RecordingTracker | None = None

    @property
    def pipeline(self) -> "RecordingTracker":
        """What the run of the whole pipeline is told."""
        if self.whole is None:
            self.whole = RecordingTracker()
            self.whole.fail = self.fail
        return self.whole

    def _record(self, name: str, value: Any) -> None:
        self.calls.append((name, value))
        if self.fail:
            raise TrackingError("the server went away")

    def of(self, name: str) -> list[Any]:
        return [value for called, value in self.calls if called == name]

    def log_params(self, params: Mapping[str, Any]) -> None:
        self._record("params", dict(params))

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        self._record("metrics", dict(metrics))

    def log_history(self, history: Sequence[Mapping[str, float]], prefix: str = "epoch") -> None:
        self._record("history", (history, prefix))

    def log_artifact(self, path: Path, folder: str = "") -> None:
        self._record("artifact", (path.name, folder))

    def log_onnx(self, path: Path, name: str) -> None:
        self._record("onnx", (path.name, name))

    def log_dataset(self, info: DatasetInfo) -> None:
        self._record("dataset", info)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        self._record("tags", dict(tags))

    def close(self, status: str) -> None:
        self.closed = status
        if self.fail:
            raise TrackingError("the run can't be closed")
