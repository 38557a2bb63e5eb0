"""A run that remembers its entries, and a data set to record."""

from typing import Any

from qat_lib.errors import TrackingError
from qatline.components.artifacts.data_info import DatasetInfo, InputInfo
from qatline.components.tracking.mlflow_run import Entry

INFO = DatasetInfo(
    kind="npz",
    classes=("a", "b"),
    inputs={"x": InputInfo(shape=(8, 8, 1), dtype="float32")},
    splits={"test": 2},
    fingerprint="f" * 64,
    source="http://u:p@host/d.npz",
)


class RecordingRun:
    """A run of MLflow without MLflow; ``fail`` makes every call fail."""

    run_id = "recorded"

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.fail = False
        self.closed: str | None = None

    def of(self, kind: type[Any]) -> list[Any]:
        return [entry for entry in self.entries if isinstance(entry, kind)]

    def record(self, entry: Entry) -> None:
        self.entries.append(entry)
        if self.fail:
            raise TrackingError("the server went away")

    def end(self, status: str) -> None:
        self.closed = status
        if self.fail:
            raise TrackingError("the run can't be closed")
