"""A tracking store in PostgreSQL: there, away, and with a wrong password."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow_server import free_port
from postgres_server import PASSWORD, PostgresServer

from qat_lib.errors import TrackingError
from qatline.components.tracking.pipeline_run import find_or_create_parent
from qatline.components.tracking.store import Contact, ensure_store, open_client, probe

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]


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
