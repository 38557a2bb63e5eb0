"""A step's tracker whose run the launcher writes.

Importing MLflow and opening its store costs a process some CPU seconds. On one machine the launcher
has done both already; a step sends it what is to be recorded, one JSON message for each call over a
Unix socket, and waits for the answer, so that a store that refuses is the step's error as ever.

    {"open": "evaluate"}
    {"call": "log_metrics", "pipeline": false, "arguments": [{"accuracy": 0.5}]}
    {"close": "FINISHED"}

Each is answered by ``{}`` or by ``{"error": "why"}``. A connection that ends without ``close`` is a
step that was killed: its run is FAILED.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from qat_lib.errors import TrackingError
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.tracking.tracker import ClosableRun, RunRecorder

SOCKET_VARIABLE = "QATLINE_TRACKING_SOCKET"
"""Environment variable with the path of the launcher's socket."""

LONGEST_PATH = 100
"""Characters of a socket's path; the system takes few more."""

_PATH, _DATASET = "qatline:path", "qatline:dataset"
_CALLS = frozenset(
    {
        *("log_params", "log_metrics", "log_history", "log_artifact", "log_dataset", "set_tags"),
        "log_onnx",
    }
)


class Connection(Protocol):
    """The part of ``multiprocessing.connection.Connection`` that is used."""

    def send_bytes(self, buf: bytes) -> None:
        """Send one message."""

    def recv_bytes(self) -> bytes:
        """Wait for one message; EOFError at the end."""

    def close(self) -> None:
        """End the connection."""


class _RemoteRecorder:
    """A recorder that sends its calls."""

    def __init__(self, connection: Connection, *, pipeline: bool) -> None:
        self._connection = connection
        self._of_pipeline = pipeline

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record settings."""
        texts = {name: str(value) for name, value in params.items()}
        self._call("log_params", texts)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record final numbers."""
        self._call("log_metrics", {name: float(value) for name, value in metrics.items()})

    def log_history(self, history: Sequence[Mapping[str, float]], prefix: str = "epoch") -> None:
        """Record curves."""
        self._call("log_history", list(map(dict, history)), prefix)

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Record one file."""
        self._call("log_artifact", {_PATH: str(path.absolute())}, folder)

    def log_dataset(self, info: DatasetInfo) -> None:
        """Record a data set."""
        self._call("log_dataset", {_DATASET: asdict(info)})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Record tags."""
        self._call("set_tags", dict(tags))

    def _call(self, name: str, *arguments: Any) -> None:
        message = {"call": name, "pipeline": self._of_pipeline, "arguments": arguments}
        _ask(self._connection, message)


class RemoteRun(_RemoteRecorder):
    """A step's run that the launcher writes; ``open_remote_run`` opens it."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, pipeline=False)
        self.pipeline: RunRecorder = _RemoteRecorder(connection, pipeline=True)

    def log_onnx(self, path: Path, name: str) -> None:
        """Record an ONNX model."""
        self._call("log_onnx", {_PATH: str(path.absolute())}, name)

    def close(self, status: str) -> None:
        """End the run as FINISHED or FAILED."""
        try:
            _ask(self._connection, {"close": status})
        finally:
            self._connection.close()


def open_remote_run(step: str) -> RemoteRun | None:
    """Open the run through the launcher; None if there is none that writes runs.

    Raises:
        TrackingError: the store can't be reached or refuses.
    """
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        return None
    from multiprocessing.connection import Client

    try:
        connection = Client(path, family="AF_UNIX")
    except OSError:  # of a launcher that is gone, or on another machine
        return None
    try:
        _ask(connection, {"open": step})
    except TrackingError:
        connection.close()
        raise
    return RemoteRun(connection)


def serve_run(connection: Connection, open_run: Any) -> None:
    """Write one step's run as it asks; return when it ends.

    Args:
        connection: to the step.
        open_run: called with the step's name; returns its run.
    """
    run: ClosableRun | None = None
    try:
        while True:
            message = json.loads(connection.recv_bytes())
            answer: dict[str, str] = {}
            try:
                if "open" in message:
                    run = open_run(message["open"])
                elif "close" in message and run is not None:
                    ended, run = run, None
                    ended.close(message["close"])
                else:
                    _apply(run, message)
            except Exception as error:  # noqa: BLE001 - the step's to raise, whatever it is
                answer["error"] = str(error) or type(error).__name__
            connection.send_bytes(json.dumps(answer).encode())
    except (EOFError, OSError):  # the step's process is gone
        if run is not None:
            run.close("FAILED")
    finally:
        connection.close()


def _apply(run: ClosableRun | None, message: Mapping[str, Any]) -> None:
    name = message.get("call")
    if run is None or name not in _CALLS:
        raise TrackingError(f"expected a call of an open run, received {name!r}")
    recorder = run.pipeline if message["pipeline"] else run
    getattr(recorder, name)(*map(_argument, message["arguments"]))


def _argument(value: Any) -> Any:
    """Return a path or a data set where the message says that it is one."""
    if isinstance(value, dict) and set(value) == {_PATH}:
        return Path(value[_PATH])
    if isinstance(value, dict) and set(value) == {_DATASET}:
        fields = dict(value[_DATASET])
        for name in ("classes", "image_shape"):
            fields[name] = tuple(fields[name])
        return DatasetInfo(**fields)
    return value


def _ask(connection: Connection, message: Mapping[str, Any]) -> None:
    try:
        connection.send_bytes(json.dumps(message).encode())
        answer = json.loads(connection.recv_bytes())
    except (EOFError, OSError) as error:
        raise TrackingError(
            "the launcher, which records this run, does not answer: it has ended. Finished steps "
            "are kept; resume the run."
        ) from error
    if "error" in answer:
        raise TrackingError(answer["error"])
