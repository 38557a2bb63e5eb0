"""Atomic creation of a tracking store's SQLite file.

MLflow creates its tables in place within seconds. A process killed meanwhile leaves a file
that no later MLflow can open. The file is therefore created in a temporary folder and renamed when
it is complete.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from qat_lib.errors import TrackingError
from qat_lib.files.whole_files import folder_beside, sync
from qat_lib.support.locks import LockTimeoutError, file_lock

_ELSEWHERE = "or choose another tracking.uri"
_LOCK_SECONDS = 120.0  # creating the tables takes about 10 s
_SIDE_FILES = ("-journal", "-wal", "-shm")
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
# What MLflow itself writes into a new database.
_INITIAL_ROWS = {"alembic_version": 1, "experiments": 1, "workspaces": 1}


def database_uri(path: Path) -> str:
    """Return the URI of a SQLite file, quoted where necessary."""
    return "sqlite:///" + str(path).replace("%", "%25").replace("?", "%3F")


def database_path(uri: str) -> Path | None:
    """Return the file of a SQLite URI; None for other URIs and in-memory databases."""
    if not uri.startswith("sqlite"):
        return None
    from sqlalchemy.engine import make_url

    name = make_url(uri).database
    return Path(name) if name and name != ":memory:" and not name.startswith("file:") else None


def has_content(database: Path) -> bool:
    """Return whether a database exists; empty files do not count."""
    return database.is_file() and database.stat().st_size > 0


@contextmanager
def prepared_database(path: Path) -> Iterator[None]:
    """Hold the lock of a complete database at ``path``.

    The lock is awaited for two minutes. A missing database is created first, and an incomplete one
    without runs is replaced. A file that contains runs is never modified.

    Raises:
        TrackingError: this MLflow cannot use the existing file, or another process does not release
            the lock.
        OSError: the folder is not writable. Errors of SQLAlchemy are not translated either.
    """
    lock = path.with_suffix(".lock")
    try:
        with file_lock(lock, patience=_LOCK_SECONDS):
            _prepare(path)
            yield
    except LockTimeoutError as error:
        raise TrackingError(
            f"another process has prepared the tracking database {path} for more than "
            f"{_LOCK_SECONDS:g} s. {lock_holders(lock) or 'End it'}."
        ) from error


def lock_holders(path: Path) -> str:
    """Return the processes that hold a lock on a file, with advice; empty if unknown.

    A stopped process keeps its locks: waiting for it is futile.
    """
    try:
        file = path.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:  # no such file, or not Linux
        return ""
    found = set()
    for line in lines:  # "1: POSIX  ADVISORY  WRITE 4711 fe:01:1234 0 EOF"; waiters have an arrow
        match = re.search(r"(?:READ|WRITE)\s+(\d+)\s+\w+:\w+:(\d+)\s", line)
        if match and "->" not in line and int(match[2]) == file and int(match[1]) != os.getpid():
            found.add(int(match[1]))
    return "; ".join(_described(number) for number in sorted(found))


def _described(number: int) -> str:
    process = Path("/proc") / str(number)
    try:
        command = " ".join(process.joinpath("cmdline").read_text().replace("\0", " ").split())
        stopped = process.joinpath("stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return f"Process {number} holds the lock"
    if stopped:
        advice = f"is stopped and holds the lock: continue it with kill -CONT {number}, or end it"
    else:
        advice = "holds the lock: wait for its end"
    return f"Process {number} ({command[:100]}) {advice}"


def _prepare(path: Path) -> None:
    head = _newest_revision()
    found = _look(path)
    missing = sorted(_known_tables() - found.tables)
    if found.complete and found.revision == head and not missing:
        return
    if missing and found.holds_data and found.revision == head:
        raise TrackingError(
            f"the tracking database {path} is damaged: expected the tables of MLflow, found none "
            f"called {', '.join(missing)}. Restore a copy of the file, "
            f"{_ELSEWHERE}."
        )
    if found.holds_data:
        raise TrackingError(
            f"the tracking database {path} is of another version of MLflow: expected schema "
            f"{head}, found {found.revision}. Copy the file, then run `mlflow db upgrade "
            f"{database_uri(path)}`, {_ELSEWHERE}."
        )
    with folder_beside(path) as beside:
        _create(beside / path.name)
        for suffix in _SIDE_FILES:  # a journal without its database would be applied to the new one
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        (beside / path.name).replace(path)
        sync(path.parent)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Content of a database file.

    Attributes:
        revision: revision of the schema.
        tables: names of the tables.
        complete: whether the creation was completed.
        holds_data: whether it contains more than MLflow's initial rows.
    """

    revision: str | None = None
    tables: frozenset[str] = frozenset()
    complete: bool = False
    holds_data: bool = False


def _look(path: Path) -> _Found:
    if not path.exists() or path.stat().st_size == 0:
        return _Found()
    try:
        # Opening for writing lets SQLite roll back the journal of a killed process.
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=20)
        ) as connection:
            counts = dict(_row_counts(connection))
            revisions = (
                _column(connection, "SELECT version_num FROM alembic_version")
                if counts.get("alembic_version", 0) > 0
                else []
            )
    except sqlite3.OperationalError as error:
        raise TrackingError(
            f"the tracking database {path} can't be opened: {error}. "
            f"{lock_holders(path) or 'Correct that'}, {_ELSEWHERE}."
        ) from error
    except sqlite3.DatabaseError as error:
        raise TrackingError(
            f"{path} is no SQLite database, or a damaged one ({error}). Move it away, {_ELSEWHERE}."
        ) from error
    used = any(count > _INITIAL_ROWS.get(table, 0) for table, count in counts.items())
    return _Found(
        revision=revisions[0] if revisions else None,
        tables=frozenset(counts),
        complete=counts.get("experiments", 0) > 0,
        holds_data=used,
    )


def _row_counts(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    for table in _column(connection, _TABLES):
        name = table.replace('"', '""')
        yield (
            table,
            int(_column(connection, f'SELECT count(*) FROM (SELECT 1 FROM "{name}" LIMIT 2)')[0]),
        )


def _column(connection: sqlite3.Connection, query: str) -> list[str]:
    return [row[0] for row in connection.execute(query)]


def _newest_revision() -> str | None:
    """Return the schema revision of the installed MLflow."""
    import mlflow
    from alembic.script import ScriptDirectory

    return ScriptDirectory(
        str(Path(mlflow.__file__).parent / "store" / "db_migrations")
    ).get_current_head()


def _known_tables() -> set[str]:
    """Return the table names of the installed MLflow."""
    from mlflow.store.db.base_sql_model import Base
    from mlflow.store.model_registry.dbmodels import models as _registry  # noqa: F401
    from mlflow.store.tracking.dbmodels import models as _tracking  # noqa: F401

    return set(Base.metadata.tables)


def _create(path: Path) -> None:
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(database_uri(path), DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)
    # Close the file before the rename: no connection may refer to the temporary name.
    store.engine.dispose()
    sync(path)
