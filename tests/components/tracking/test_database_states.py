"""Databases kept, replaced or refused, without MLflow.

Its schema here is three tables.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from qat_lib.errors import TrackingError
from qatline.components.tracking import database as tracking_database
from qatline.components.tracking.database import database_path, database_uri, prepared_database
from qatline.components.tracking.store import translated

NEW = {"alembic_version": ["m"], "experiments": ["Default"], "workspaces": ["default"]}


def make(path: Path, **tables: list[str]) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        for name, rows in tables.items():
            connection.execute(f"CREATE TABLE {name} (version_num TEXT)")
            connection.executemany(f"INSERT INTO {name} VALUES (?)", [(row,) for row in rows])
    return path


@pytest.fixture(autouse=True)
def created(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []
    monkeypatch.setattr(tracking_database, "_newest_revision", lambda: "m")
    monkeypatch.setattr(tracking_database, "_known_tables", lambda: set(NEW))
    monkeypatch.setattr(tracking_database, "_create", lambda path: made.append(make(path, **NEW)))
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_prepared_database_creates_one_in_new_folders(tmp_path: Path, created: list[Path]) -> None:
    path = tmp_path / "deep" / "er" / "mlflow.db"
    for _ in range(2):
        with prepared_database(path):
            assert path.stat().st_size > 0
    (place,) = created
    assert place.name == "mlflow.db"
    assert place.parent.parent == path.parent
    assert names(path.parent) == ["mlflow.db"]


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"runs": []},
        {"alembic_version": [], "experiments": []},
        {"alembic_version": ["a"]},
        {"alembic_version": ["a"], "runs": []},
        {
            "alembic_version": ["a"],
            "experiments": ["Default"],
            "workspaces": ["default"],
            "runs": [],
        },
        {"alembic_version": ["z"], "experiments": ["Default"]},
        {"alembic_version": ["m"], "experiments": []},
        {"alembic_version": ["m"]},
    ],
)
def test_prepared_database_replaces_one_that_nobody_used(
    tmp_path: Path, created: list[Path], tables: dict[str, list[str]]
) -> None:
    path = make(tmp_path / "mlflow.db", **tables)
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).touch()
    with prepared_database(path):
        pass
    assert len(created) == 1
    assert names(tmp_path) == ["mlflow.db"]


@pytest.mark.parametrize(
    "tables",
    [
        {"runs": ["mine"]},
        {**NEW, "alembic_version": ["a"], "runs": ["mine"]},
        {**NEW, "alembic_version": ["z"], "experiments": ["Default", "mine"]},
        {**NEW, "alembic_version": ["a"], "workspaces": ["default", "mine"]},
        {**NEW, "alembic_version": ["a", "b"]},
    ],
)
def test_prepared_database_refuses_used_foreign_schema(
    tmp_path: Path, created: list[Path], tables: dict[str, list[str]]
) -> None:
    path = make(tmp_path / "mlflow.db", **tables)
    found = tables.get("alembic_version", [None])[0]
    with (
        pytest.raises(TrackingError, match=f"expected schema m, found {found}"),
        prepared_database(path),
    ):
        pytest.fail("it was taken")
    assert created == []


@pytest.mark.parametrize("more", [{}, {"runs": ["mine"], 'odd "table"': []}])
def test_prepared_database_keeps_one_of_this_schema(
    tmp_path: Path, created: list[Path], more: dict[str, list[str]]
) -> None:
    path = make(tmp_path / "mlflow.db", **NEW, **{f"[{name}]": rows for name, rows in more.items()})
    with prepared_database(path):
        pass
    assert created == []


def test_prepared_database_tells_what_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    (path / "folder").mkdir(parents=True)
    with (
        pytest.raises(TrackingError, match=r"mlflow\.db can't be opened: unable to open"),
        prepared_database(path),
    ):
        pytest.fail("it was taken")


def test_prepared_database_removes_what_a_failure_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("disk")

    monkeypatch.setattr(tracking_database, "_create", fails)
    with pytest.raises(OSError, match="disk"), prepared_database(tmp_path / "mlflow.db"):
        pytest.fail("it was taken")
    assert names(tmp_path) == []


def test_prepared_database_stands_where_only_the_cleaning_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: Path, *, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError("busy")

    monkeypatch.setattr(shutil, "rmtree", busy)
    with prepared_database(tmp_path / "mlflow.db"):
        assert (tmp_path / "mlflow.db").stat().st_size > 0


def test_prepared_database_waits_twenty_seconds_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, connect, waits = make(tmp_path / "mlflow.db", **NEW), sqlite3.connect, list[float]()

    def look(*arguments: object, timeout: float, **options: bool) -> sqlite3.Connection:
        waits.append(timeout)
        return connect(*arguments, timeout=timeout, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(tracking_database.sqlite3, "connect", look)
    with prepared_database(path):
        pass
    assert waits == [20]


def test_prepared_database_refuses_one_that_lost_a_table(tmp_path: Path) -> None:
    path = make(
        tmp_path / "mlflow.db",
        alembic_version=["m"],
        experiments=["Default", "mine"],
    )
    before = path.read_bytes()
    with (
        pytest.raises(TrackingError, match=r"is damaged: .*found none called workspaces\. Restore"),
        prepared_database(path),
    ):
        pass
    assert path.read_bytes() == before


@contextmanager
def stopped_holder(code: str, path: Path) -> Iterator[int]:
    """Run a process that locks a file, stop it when it has, and yield its number."""
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{code}; print('held', flush=True); time.sleep(600)", str(path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        os.waitpid(holder.pid, os.WUNTRACED)  # the signal arrives later
        yield holder.pid
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/locks")
def test_prepared_database_names_a_stopped_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking_database, "_LOCK_SECONDS", 0.2)
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)"
    with (
        stopped_holder(code, tmp_path / "mlflow.lock") as number,
        pytest.raises(TrackingError, match=f"Process {number} .* is stopped .*kill -CONT {number}"),
        prepared_database(tmp_path / "mlflow.db"),
    ):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/locks")
def test_translated_names_the_holder_of_a_locked_database(tmp_path: Path) -> None:
    path = make(tmp_path / "mlflow.db", **NEW)
    code = (
        "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('BEGIN EXCLUSIVE')"
    )
    with (
        stopped_holder(code, path) as number,
        pytest.raises(
            TrackingError, match=rf"^it: database is locked\. Process {number} .*stopped"
        ),
        translated("it", database_uri(path)),
        closing(sqlite3.connect(path, timeout=0)) as connection,
    ):
        connection.execute("SELECT * FROM experiments")


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:///mlflow.db", "mlflow.db"),
        ("sqlite:////a/b.db", "/a/b.db"),
        ("sqlite:///file:x?mode=ro&uri=true", None),
        ("sqlite:///:memory:", None),
        ("sqlite://", None),
        ("mysql://host/x", None),
    ],
)
def test_database_path_is_that_of_a_file(uri: str, path: str | None) -> None:
    assert database_path(uri) == (None if path is None else Path(path))


def test_database_uri_quotes_what_would_end_the_path() -> None:
    assert database_uri(Path("/a b/c%d?e.db")) == "sqlite:////a b/c%25d%3Fe.db"
