"""Real stores of MLflow: SQLite, and a server on SQLite or PostgreSQL, on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

_UP_SECONDS = 240.0


@contextmanager
def mlflow_server(folder: Path, backend: str) -> Iterator[str]:
    """Run ``mlflow server`` on a database; yield its address."""
    port = free_port()
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "2", "--backend-store-uri", backend]
    command += ["--artifacts-destination", str(folder / "files")]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            uri = f"http://127.0.0.1:{port}"
            _wait(uri, process, folder / "server.log")
            yield uri
        finally:
            os.killpg(process.pid, 15)
            process.wait(timeout=30)


@contextmanager
def postgres() -> Iterator[str]:
    """Run PostgreSQL with one database; yield its address for SQLAlchemy.

    Its files are not below pytest's folder: each start of pytest closes that one to other users,
    and PostgreSQL, which runs as another, would end at its next checkpoint, minutes later.

    Skips where PostgreSQL, a driver, or a user that may run it is missing.
    """
    programs = {name: shutil.which(name) for name in ("initdb", "postgres", "createdb")}
    if programs["createdb"] is None and programs["postgres"] is not None:
        beside = Path(programs["postgres"]).resolve().parent / "createdb"
        programs["createdb"] = str(beside) if beside.is_file() else None
    missing = [name for name, path in programs.items() if path is None]
    driver = next((name for name in ("psycopg2", "pg8000") if find_spec(name)), None)
    if missing or driver is None:
        pytest.skip(f"PostgreSQL: no {', '.join(missing) or 'driver (psycopg2 or pg8000)'}")
    folder = Path(tempfile.mkdtemp(prefix="qatline-postgres-"))
    try:
        yield from _served(folder, programs, str(driver))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _served(folder: Path, programs: Mapping[str, str | None], driver: str) -> Iterator[str]:
    user = _unprivileged(folder)
    data, port = folder / "data", free_port()
    run = ["-D", str(data)]
    initialize = [str(programs["initdb"]), *run, "-U", "mlflow", "-A", "trust", "-E", "UTF8"]
    subprocess.run(initialize, check=True, capture_output=True, user=user, cwd=folder)
    serve = [str(programs["postgres"]), *run, "-p", str(port), "-h", "127.0.0.1"]
    serve += ["-k", str(data), "-c", "fsync=off"]
    with (folder / "postgres.log").open("w") as log:
        process = subprocess.Popen(serve, stdout=log, stderr=log, user=user, cwd=folder)
        try:
            create = [str(programs["createdb"]), "-h", "127.0.0.1", "-p", str(port)]
            _retry([*create, "-U", "mlflow", "mlflow"])
            yield f"postgresql+{driver}://mlflow@127.0.0.1:{port}/mlflow"
        finally:
            process.terminate()
            process.wait(timeout=30)


def free_port() -> int:
    """Return a port of loopback that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _unprivileged(folder: Path) -> str | None:
    """Return the user to run as, which PostgreSQL wants to be none of root's rights."""
    if os.getuid() != 0:
        return None
    import pwd

    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(folder, found.pw_uid, found.pw_gid)
        return name
    pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _retry(command: list[str]) -> None:
    deadline = time.monotonic() + 60
    while subprocess.run(command, capture_output=True, check=False).returncode:
        assert time.monotonic() < deadline, f"{command[0]} did not succeed"
        time.sleep(0.2)


def _wait(uri: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _UP_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{uri}/health", timeout=5):
                return
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.3)
    pytest.fail(f"the MLflow server did not come up: {log.read_text()[-2000:]}")
