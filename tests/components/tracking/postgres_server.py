"""A real PostgreSQL on loopback, which asks for a password."""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from mlflow_server import free_port

DRIVER = "psycopg2"
PASSWORD = "planted-pg"
_USER = "qatline"


def _programs() -> str | None:
    for name in ("initdb", "postgres"):
        if shutil.which(name) is None:
            found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
            if not found:
                return None
    return str(Path(shutil.which("initdb") or found[-1]).parent)


def missing() -> str:
    """Return why there can be no server, or an empty text."""
    if _programs() is None:
        return "PostgreSQL is not installed"
    if importlib.util.find_spec(DRIVER) is None:
        return f"PostgreSQL's driver {DRIVER} is not installed"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "PostgreSQL does not run as root, and there is no setpriv"
    return ""


def driver_folder() -> Path:
    """Return the folder on the Python path that has the driver."""
    found = importlib.util.find_spec(DRIVER)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


class PostgresServer:
    """A server with an empty database; its user's password is ``PASSWORD``."""

    def __init__(self) -> None:
        if reason := missing():
            pytest.skip(reason)
        # Not below pytest's folder, which other users may not enter.
        self._folder = Path(tempfile.mkdtemp(prefix="qatline-postgres-"))
        self._port = free_port()
        self.uri = f"postgresql+{DRIVER}://{_USER}@127.0.0.1:{self._port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix: list[str] = []
        if os.geteuid() == 0:
            self._prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            os.chown(self._folder, 65534, 65534)
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        options = f"--username={_USER} --auth=scram-sha-256 --pwfile={secret} --no-sync".split()
        subprocess.run(
            [*self._prefix, f"{_programs()}/initdb", *options, f"--pgdata={self._data}"],
            check=True,
            capture_output=True,
            cwd="/",
        )

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        options = ["-h", "127.0.0.1", "-p", str(self._port), "-k", str(self._folder), "-F"]
        self._process = subprocess.Popen(
            [*self._prefix, f"{_programs()}/postgres", "-D", self._data, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        import psycopg2  # type: ignore[import-not-found,unused-ignore]

        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                psycopg2.connect(
                    host="127.0.0.1",
                    port=self._port,
                    user=_USER,
                    password=PASSWORD,
                    dbname="postgres",
                ).close()
                return
            except psycopg2.OperationalError:
                time.sleep(0.2)
        pytest.fail("PostgreSQL did not come up")

    def kill(self) -> None:
        """End the server at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=30)
            self._process = None

    def remove(self) -> None:
        """End it and remove its files."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
