"""Tracking stores: reachable or not, prepared, in SQLite and in PostgreSQL."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from mlflow_server import free_port
from postgres_server import PASSWORD, PostgresServer

from qat_lib.errors import DataError, TrackingError
from qatline.components.support.retries import repeated
from qatline.components.tracking import store as tracking_store
from qatline.components.tracking.pipeline_run import find_or_create_parent
from qatline.components.tracking.store import (
    Contact,
    ensure_store,
    is_busy,
    open_client,
    patient,
    probe,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_database_that_is_away_is_told_soon() -> None:
    started = time.monotonic()
    uri = f"postgresql+psycopg2://me@127.0.0.1:{free_port()}/runs"
    with pytest.raises(TrackingError, match=r"the tracking database \S+ can't be reached"):
        open_client(uri)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("uri", ["postgresql://me@/runs", "mysql://me@127.0.0.1:99999/runs"])
def test_probe_of_a_database_needs_a_host_and_a_port(uri: str) -> None:
    if "99999" in uri:
        with pytest.raises(TrackingError, match="can't be reached"):
            probe(uri)
    else:  # a socket file, which the driver finds
        probe(uri)


def test_contact_asks_again_after_a_while() -> None:
    contact = Contact(f"postgresql://127.0.0.1:{free_port()}/runs")
    for _ in range(2):
        with pytest.raises(TrackingError):
            contact.check()


def test_postgres_takes_runs_and_their_artifacts(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    experiment = ensure_store(postgres.uri, "e", (tmp_path / "artifacts").as_uri())
    client = open_client(postgres.uri)
    agreed: list[str] = []

    def start() -> None:
        agreed.append(find_or_create_parent(open_client(postgres.uri), experiment, "kfp"))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(agreed) == 4
    assert len(set(agreed)) == 1
    client.log_artifact(agreed[0], str(tmp_path / "a.txt"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "artifacts"]


def test_wrong_password_is_told_soon(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "planted-wrong")
    started = time.monotonic()
    with pytest.raises(TrackingError, match="password authentication failed") as caught:
        ensure_store(postgres.uri, "e")
    assert time.monotonic() - started < 30
    assert "planted" not in str(caught.value)


@pytest.fixture
def answering() -> Iterator[Any]:
    """Start HTTP servers that answer with a given status."""
    servers = []

    def start(status: int) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [200, 401, 403, 404, 500, 501, 505])
def test_any_answer_of_a_server_will_do(answering: Any, status: int) -> None:
    probe(answering(status))


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_gateway_without_a_server_does_not(answering: Any, status: int) -> None:
    with pytest.raises(TrackingError, match=f"can't be reached: it answers {status}"):
        probe(answering(status))


def test_silence_is_noticed_soon() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        started = time.monotonic()
        with pytest.raises(TrackingError, match="can't be reached"):
            probe(f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=0.2)
        assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    "uri", ["http://[broken", "http://no-such-host.invalid", "http://127.0.0.1:99999"]
)
def test_what_is_no_address_is_told(uri: str) -> None:
    with pytest.raises(TrackingError, match="can't be reached"):
        probe(uri, seconds=5)


@pytest.mark.parametrize("uri", ["sqlite:////tmp/x.db", "", "databricks"])
def test_other_stores_are_not_probed(uri: str) -> None:
    probe(uri)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("went wrong\n[SQL: SELECT 1]"), "^it: went wrong$"),
        (RuntimeError("went wrong\n(Background on this error at: x)"), "^it: went wrong$"),
        (RuntimeError("http://me:planted@host"), r"^it: http://\*\*\*@host$"),
        (KeyError(), "^it: KeyError$"),
        (RuntimeError("No space left on device"), "^it: the disk is full"),
        (ImportError("no such name"), "^it: no such name$"),
        (ModuleNotFoundError("No module named 'mlflow'", name="mlflow"), "^it: .*pip install"),
    ],
)
def test_translated_tells_what_libraries_raise(error: Exception, message: str) -> None:
    with pytest.raises(TrackingError, match=message), tracking_store.translated("it"):
        raise error


def test_translated_hands_our_own_errors_on() -> None:
    with pytest.raises(DataError, match="own"), tracking_store.translated("it"):
        raise DataError("own")


@pytest.mark.matrix
def test_ensuring_a_store_again_changes_nothing(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/deep/mlflow.db"
    experiment = ensure_store(uri, "tests", "s3://x")
    assert ensure_store(uri, "tests", "s3://y") == experiment != ensure_store(uri, "another")
    client = open_client(uri)
    made = client.get_experiment(experiment)
    assert made.artifact_location == "s3://x"
    assert made.tags["mlflow.experimentKind"] == "custom_model_development"
    client.delete_experiment(experiment)
    with pytest.raises(
        TrackingError, match=f"'tests' was deleted: restore it with .* -x {experiment}"
    ):
        ensure_store(uri, "tests")


def test_a_store_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database")
    with pytest.raises(TrackingError, match=r"can't be used.*exists"):
        ensure_store(f"sqlite:///{tmp_path}/file/mlflow.db", "x")
    with pytest.raises(TrackingError, match="file is no SQLite database"):
        ensure_store(f"sqlite:///{tmp_path}/file", "x")
    with pytest.raises(TrackingError, match="can't be used"):
        ensure_store("nonsense://host", "x")


@pytest.mark.matrix
def test_two_launchers_may_make_one_database_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from qatline.components.tracking.store import ensure_store; "
        "print(ensure_store(sys.argv[1], 'e'))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, f"sqlite:///{tmp_path}/mlflow.db"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    launchers = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    ends = [(*launcher.communicate(timeout=300), launcher.returncode) for launcher in launchers]
    assert [code for _, _, code in ends] == [0, 0], ends
    assert len({out for out, _, _ in ends}) == 1


class BusyError(Exception):
    """What MLflow raises for a database that is locked."""

    error_code = "TEMPORARILY_UNAVAILABLE"


@pytest.mark.parametrize(
    ("error", "busy"),
    [
        (BusyError(), True),
        (Exception("... (too many 503 error responses)"), True),
        (ValueError("no"), False),
        (BusyError("database or disk is full"), False),
        (Exception("too many 500 error responses"), False),
    ],
)
def test_patient_repeats_while_the_store_is_busy(
    monkeypatch: pytest.MonkeyPatch, error: Exception, busy: bool
) -> None:
    pauses, errors = list[float](), [error]

    def request() -> str:
        if errors:
            raise errors.pop()
        return "answer"

    monkeypatch.setattr(tracking_store, "repeated", partial(repeated, sleep=pauses.append))
    assert is_busy(error) is busy
    if busy:
        assert patient(request) == "answer"
    else:
        with pytest.raises(type(error)):
            patient(request)
    assert len(pauses) == busy
