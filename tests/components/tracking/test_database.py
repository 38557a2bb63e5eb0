import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from qat_lib.errors import TrackingError
from qatline.components.tracking import database as tracking_database
from qatline.components.tracking.database import database_path, database_uri, prepared_database
from qatline.components.tracking.store import ensure_store

# SQLAlchemy 2.1 about a loader that MLflow 3.17 uses, and MLflow about its own type hints.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete database without runs; a careless URI would quote its folder."""
    path = tmp_path_factory.mktemp("database") / "my räns" / "mlflow.db"
    ensure_store(database_uri(path), "tests")
    return path


@pytest.fixture
def quick_creation(template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the complete database instead of creating one, which takes MLflow seconds."""
    monkeypatch.setattr(tracking_database, "_create", lambda path: shutil.copyfile(template, path))


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement).fetchall()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_database_uri_reads_back_any_path(template: Path) -> None:
    for path in (template, template.with_name("100%41?.db")):
        assert database_path(database_uri(path)) == path
    assert names(template.parent) == ["mlflow.db"]
    assert names(template.parent.parent) == [template.parent.name]
    for uri in ("https://host/x", "sqlite://", "sqlite:///:memory:", "postgresql://host/db"):
        assert database_path(uri) is None


def test_ensure_store_survives_a_kill_during_creation(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    code = "import sys; from qatline.components.tracking.store import ensure_store; ensure_store(sys.argv[1], 'e')"
    command = [sys.executable, "-W", "ignore", "-c", code, database_uri(path)]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any(file.stat().st_size > 0 for file in tmp_path.glob(".mlflow.db-*.tmp/mlflow.db")):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    unfinished, lock = names(tmp_path)
    assert unfinished.endswith(".tmp")
    assert lock == "mlflow.lock"
    assert ensure_store(database_uri(path), "e") == "1"
    assert names(tmp_path) == ["mlflow.db"]


@pytest.mark.usefixtures("quick_creation")
@pytest.mark.parametrize("left", ["nothing", "a table", "an early revision", "no experiment"])
def test_prepared_database_replaces_an_unfinished_one(
    template: Path, tmp_path: Path, left: str
) -> None:
    path = tmp_path / "mlflow.db"
    path.touch()
    (tmp_path / "mlflow.db-journal").write_bytes(b"of a process that was killed")
    if left == "no experiment":
        shutil.copyfile(template, path)
        query(path, "DELETE FROM experiment_tags")
        query(path, "DELETE FROM experiments")
    elif left != "nothing":
        query(path, "CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name TEXT)")
    if left == "an early revision":
        query(path, "CREATE TABLE alembic_version (version_num VARCHAR(32))")
        query(path, "INSERT INTO alembic_version VALUES ('451aebb31d03')")
    with prepared_database(path):
        assert query(path, "SELECT name FROM experiments WHERE experiment_id = 0") == [("Default",)]
    assert names(tmp_path) == ["mlflow.db"]


@pytest.mark.usefixtures("quick_creation")
@pytest.mark.parametrize("table", ["runs", "registered_models", "experiments"])
def test_prepared_database_refuses_another_schema_that_holds_data(
    template: Path, tmp_path: Path, table: str
) -> None:
    path = tmp_path / "mlflow.db"
    shutil.copyfile(template, path)
    query(path, "UPDATE alembic_version SET version_num = 'another'")
    column = {"runs": "run_uuid", "registered_models": "name", "experiments": "name"}[table]
    query(path, f"INSERT INTO {table} ({column}) VALUES ('mine')")
    before = path.read_bytes()
    with (
        pytest.raises(TrackingError, match=r"found another.*mlflow db upgrade sqlite:///"),
        prepared_database(path),
    ):
        pass
    assert path.read_bytes() == before


@pytest.mark.usefixtures("quick_creation")
def test_prepared_database_keeps_a_complete_one(template: Path, tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    shutil.copyfile(template, path)
    query(path, "INSERT INTO runs (run_uuid) VALUES ('mine')")
    with prepared_database(path):
        pass
    assert query(path, "SELECT run_uuid FROM runs") == [("mine",)]


@pytest.mark.parametrize(
    "content", [b"a text that is no database", b"SQLite format 3\0" + bytes(5000)]
)
def test_prepared_database_keeps_what_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(content)
    with (
        pytest.raises(TrackingError, match="no SQLite database, or a damaged one"),
        prepared_database(path),
    ):
        pass
    assert path.read_bytes() == content


def test_ensure_store_tells_a_full_disk_without_sql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(path: Path) -> None:
        path.write_bytes(b"half")
        raise sqlite3.OperationalError("database or disk is full\n[SQL: CREATE TABLE x]")

    monkeypatch.setattr(tracking_database, "_create", fill)
    with pytest.raises(TrackingError, match=r"the disk is full.*qatline resume") as caught:
        ensure_store(database_uri(tmp_path / "mlflow.db"), "e")
    assert "SQL:" not in str(caught.value)
    assert names(tmp_path) == []
