"""Tracking store: availability, preparation of its database, and patience with a busy one.

If a database is locked or temporarily out of connections, MLflow responds "temporarily unavailable"
(its server: 503). MLflow's client repeats requests to a server for some seconds, but never requests
to a database.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar
from urllib.parse import urlsplit

from qat_lib.errors import QatlineError, TrackingError
from qat_lib.support.extras import missing_hint
from qatline.components.support.credentials import (
    S3_ENDPOINT_VARIABLES,
    check_address,
    check_variables,
    scrub,
)
from qatline.components.support.disk_errors import AFTER_FULL, is_disk_full
from qatline.components.support.retries import repeated
from qatline.components.tracking.database import database_path, lock_holders, prepared_database

PROBE_SECONDS = 3.0
CONTACT_SECONDS = 5.0
"""Seconds during which a responding store is not probed again."""

# MLflow 3 would display an experiment in its view for language models, without the metrics.
_METRICS_VIEW = {"mlflow.experimentKind": "custom_model_development"}
_AWAY = frozenset({502, 503, 504})
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
# MLflow's default is seven tries of up to two minutes with growing pauses. System metrics are
# noise here, and a uv project in the working directory is unrelated to a logged model.
_CLIENT_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    "MLFLOW_UV_AUTO_DETECT": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "PGCONNECT_TIMEOUT": "10",
}


PATIENCE = 12.0
"""Seconds after which a busy store counts as failed."""

_BUSY = "too many 503 error responses"

_T = TypeVar("_T")


class Contact:
    """Contact with a tracking store, probed before a call unless it responded recently.

    Args:
        uri: the tracking URI.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._answered = -CONTACT_SECONDS

    def check(self) -> None:
        """Check that the store is reachable.

        Raises:
            TrackingError: the store does not respond.
        """
        if time.monotonic() - self._answered >= CONTACT_SECONDS:
            probe(self._uri)
            self._answered = time.monotonic()


def open_client(uri: str) -> Any:
    """Return an ``MlflowClient`` with calls that give up within a minute.

    Raises:
        ConfigError: the URI contains credentials.
        TrackingError: the store does not respond, or MLflow is not installed.
    """
    probe(uri)
    with translated(f"the tracking store {scrub(uri)} can't be used", uri):
        return _client(uri)


def _client(uri: str) -> Any:
    limit_waiting()
    from mlflow import MlflowClient

    if _scheme(uri) in _DATABASE_PORTS:
        from sqlalchemy import create_engine

        # Connect once first: MLflow retries a wrong password ten times, for over three minutes.
        engine = create_engine(uri)
        with engine.connect():
            pass
        engine.dispose()
    return MlflowClient(tracking_uri=uri)


def limit_waiting() -> None:
    """Set MLflow's retries and timeouts in the environment unless the user has set them."""
    for name, value in _CLIENT_DEFAULTS.items():
        os.environ.setdefault(name, value)


def probe(uri: str, *, seconds: float = PROBE_SECONDS) -> None:
    """Check within ``seconds`` that a store responds at the tracking URI.

    MLflow itself would retry for minutes.

    Any response of a server counts, except a gateway's report of a missing backend: a server may
    require credentials, or serve ``/health`` elsewhere. A database must accept a connection. Files
    are not probed.

    Raises:
        ConfigError: the URI, or the address of the object store behind it, contains credentials.
        TrackingError: the store does not respond.
    """
    check_address(uri, "the tracking URI")
    check_variables(*S3_ENDPOINT_VARIABLES)
    if _scheme(uri) in ("http", "https"):
        ask = _ask
    elif _scheme(uri) in _DATABASE_PORTS:
        ask = _knock
    else:
        return
    outcome: list[str] = []
    # The timeout of urlopen covers neither name resolution nor several addresses in turn: limit
    # the whole probe by waiting for a thread.
    thread = threading.Thread(target=lambda: outcome.append(ask(uri, seconds)), daemon=True)
    thread.start()
    thread.join(seconds)
    reason = outcome[0] if outcome else f"no answer within {seconds:g} s"
    if reason:
        kind = "server" if ask is _ask else "database"
        raise TrackingError(
            f"the tracking {kind} {scrub(uri)} can't be reached: {scrub(reason)}. Start it, "
            "correct tracking.uri, or set tracking.required=false to run without it."
        )


def ensure_store(uri: str, experiment: str, artifact_location: str | None = None) -> str:
    """Prepare the tracking store for concurrent steps, and return the experiment's id.

    A new SQLite database is created under a lock and appears atomically: two processes that create
    it simultaneously would break each other's migration. Call it once, before the first step.

    Args:
        uri: the tracking URI, such as ``sqlite:////runs/mlflow.db`` or ``https://mlflow.example``.
        experiment: name of the experiment, created if missing.
        artifact_location: artifact location of a new experiment; existing ones keep theirs.

    Raises:
        TrackingError: the store cannot be reached, opened or used.
    """
    probe(uri)
    with translated(f"the tracking store {scrub(uri)} can't be used", uri), _complete(uri):
        client = _client(uri)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            return _new_experiment(client, experiment, artifact_location)
        if found.lifecycle_stage != "active":
            raise TrackingError(
                f"the experiment {experiment!r} was deleted: restore it with "
                f"`mlflow experiments restore -x {found.experiment_id}`, or choose another "
                "tracking.experiment"
            )
        return str(found.experiment_id)


def _new_experiment(client: Any, name: str, artifact_location: str | None) -> str:
    try:
        return str(
            client.create_experiment(name, artifact_location=artifact_location, tags=_METRICS_VIEW)
        )
    except Exception as error:
        if getattr(error, "error_code", "") != "RESOURCE_ALREADY_EXISTS":
            raise
        # Another process created it first.
        return str(client.get_experiment_by_name(name).experiment_id)


@contextmanager
def translated(what: str, uri: str = "") -> Iterator[None]:
    """Translate errors of MLflow and its libraries into a TrackingError without secrets.

    Args:
        what: the failed action, for the message.
        uri: the store, for the owner of its lock in the message; default: ``MLFLOW_TRACKING_URI``.
    """
    try:
        yield
    except QatlineError:
        raise
    except ImportError as error:
        raise TrackingError(f"{what}: {missing_hint(error) or error}") from error
    except Exception as error:  # MLflow passes on errors of SQLAlchemy, requests and boto3
        reason = _reason(error)
        path = database_path(uri or os.environ.get("MLFLOW_TRACKING_URI", ""))
        if "database is locked" in reason and path and (holders := lock_holders(path)):
            reason += f". {holders}."
        raise TrackingError(f"{what}: {reason}") from error


def _scheme(uri: str) -> str:
    """Return the scheme without a driver: ``postgresql`` for ``postgresql+psycopg2://...``."""
    scheme, colon, _ = uri.partition("://")
    return scheme.partition("+")[0] if colon else ""


def _complete(uri: str) -> AbstractContextManager[None]:
    path = database_path(uri)
    return prepared_database(path) if path else nullcontext()


def _reason(error: Exception) -> str:
    """Return an error's message without SQLAlchemy's SQL and links."""
    if is_disk_full(error):
        return f"the disk is full. {AFTER_FULL}"
    text = re.split(r"\n\[SQL: |\n\(Background on this error", str(error))[0]
    return scrub(text) or type(error).__name__


def _ask(uri: str, seconds: float) -> str:
    """Return the reason if the server is unreachable, else an empty string."""
    try:
        parts = urlsplit(uri)
        host = parts.netloc.rpartition("@")[2]
        url = f"{parts.scheme}://{host}{parts.path.rstrip('/')}/health"
        with urllib.request.urlopen(url, timeout=seconds):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return f"it answers {error.code} {error.reason}" if error.code in _AWAY else ""
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def _knock(uri: str, seconds: float) -> str:
    """Return the reason if a database refuses connections, else an empty string."""
    try:
        parts = urlsplit(uri)
        port = parts.port or _DATABASE_PORTS[_scheme(uri)]
        if not parts.hostname:  # a socket file, which the driver finds
            return ""
        with socket.create_connection((parts.hostname, port), timeout=seconds):
            return ""
    except (OSError, ValueError) as error:
        return str(error)


def patient(request: Callable[[], _T]) -> _T:
    """Return the result of a request; repeat it while the store is busy.

    A busy store rejects a request without effect.

    Raises:
        Exception: the last error of the request.
    """
    return repeated(request, is_busy, seconds=PATIENCE)


def is_busy(error: BaseException) -> bool:
    """Return whether an MLflow error means a busy store; a full disk does not count."""
    unavailable = getattr(error, "error_code", "") == "TEMPORARILY_UNAVAILABLE"
    return (unavailable or _BUSY in str(error)) and not is_disk_full(error)
