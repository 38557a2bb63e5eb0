"""A real ``mlflow server`` on loopback."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class MlflowServer:
    """A server that stores runs and artifacts in ``folder``; it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        environment = {
            **os.environ,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "PYTHONWARNINGS": "ignore",
        }
        command = f"server --host 127.0.0.1 --port {self._port} --workers 1".split()
        stores = [
            *("--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db"),
            *("--artifacts-destination", str(self._folder / "files")),
        ]
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", *command, *stores],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                    return
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.3)
        log_text = (self._folder / "log").read_text()
        pytest.fail(f"the MLflow server did not come up: {log_text[-2000:]}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the server and its workers."""
        if self._process is not None:
            os.killpg(self._process.pid, number)
            self._process.wait(timeout=30)
            self._process = None
