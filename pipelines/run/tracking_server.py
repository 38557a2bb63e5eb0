"""The launcher's side of ``qatline.components.tracking.remote_tracker``: it writes the runs of the steps."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Listener
from pathlib import Path

from qatline.components.tracking.mlflow_tracker import open_run
from qatline.components.tracking.remote_tracker import LONGEST_PATH, SOCKET_VARIABLE, serve_run
from qatline.components.tracking.tracker import tracking_mode

_PATIENCE = 30.0  # seconds to wait for the last record


class TrackingServer:
    """Writes the runs of steps that connect to a socket, each in a thread of its own."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = Listener(path, family="AF_UNIX")
        self._threads: list[threading.Thread] = []
        self._ended = False
        self._accepting = threading.Thread(target=self._accept, name="tracking-server", daemon=True)
        self._accepting.start()

    def end(self) -> None:
        """Take no more steps; wait until the runs of killed ones are closed."""
        self._ended = True
        Client(self._path, family="AF_UNIX").close()  # a listener that waits can't be closed
        self._accepting.join(timeout=_PATIENCE)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=_PATIENCE)

    def _accept(self) -> None:
        while True:
            connection = self._listener.accept()
            if self._ended:
                connection.close()
                return
            thread = threading.Thread(target=serve_run, args=(connection, open_run), daemon=True)
            self._threads.append(thread)
            thread.start()


@contextmanager
def served_tracking() -> Iterator[None]:
    """Write what steps of the block record, which then need no MLflow.

    Does nothing where tracking is off, or where the path of the temporary folder is too long for a
    socket: the steps then write by themselves.
    """
    with tempfile.TemporaryDirectory(prefix="tracking-") as folder:
        path = str(Path(folder) / "socket")
        if tracking_mode() == "off" or len(path) > LONGEST_PATH:
            yield
            return
        server = TrackingServer(path)
        os.environ[SOCKET_VARIABLE] = path
        try:
            yield
        finally:
            del os.environ[SOCKET_VARIABLE]
            server.end()
