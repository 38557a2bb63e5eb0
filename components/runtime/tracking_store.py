"""The tracking store itself: is it there, and is its database ready."""

from __future__ import annotations

import fcntl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from components.runtime.credentials import S3_ENDPOINT_VARIABLES, check_address, check_variables, scrub
from qat_lib.errors import ConfigError, TrackingError
from qat_lib.extras import missing_hint

PROBE_SECONDS = 3.0
_AWAY = frozenset({502, 503, 504})


def probe(uri: str, *, seconds: float = PROBE_SECONDS) -> None:
    """Check within ``seconds`` that something answers at the tracking URI; MLflow itself would retry for minutes.

    Any answer counts but that of a gateway which says that nobody is behind it: a server may want
    credentials, or serve ``/health`` elsewhere. A URI that is not HTTP is not probed here.

    Raises:
        ConfigError: the URI, or the address of the object store behind it, holds credentials.
        TrackingError: nothing answers.
    """
    check_address(uri, "the tracking URI")
    check_variables(*S3_ENDPOINT_VARIABLES)
    if not uri.startswith(("http://", "https://")):
        return
    outcome: list[str] = []
    # The timeout of urlopen covers neither name resolution nor several addresses in turn; waiting does.
    thread = threading.Thread(target=lambda: outcome.append(_ask(uri, seconds)), daemon=True)
    thread.start()
    thread.join(seconds)
    reason = outcome[0] if outcome else f"no answer within {seconds:g} s"
    if reason:
        raise TrackingError(
            f"the tracking server {scrub(uri)} can't be reached: {scrub(reason)}. Start it, correct tracking.uri, "
            "or set tracking.required=false to run without it."
        )


def ensure_store(uri: str, experiment: str, artifact_location: str | None = None) -> str:
    """Make the tracking store ready for steps that run at the same time, and return the experiment's id.

    A new SQLite database is created and migrated here, under a lock: two processes that do it at once
    break each other's migration. Call it once, before the first step.

    Args:
        uri: the tracking URI, such as ``sqlite:////runs/mlflow.db`` or ``https://mlflow.example``.
        experiment: name of the experiment, which is made when it is missing.
        artifact_location: where a new experiment keeps its artifacts; an existing one keeps its own.

    Raises:
        TrackingError: the store can't be reached, opened or used.
    """
    probe(uri)
    with _database_lock(uri), translated(f"the tracking store {scrub(uri)} can't be used"):
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            return str(client.create_experiment(experiment, artifact_location=artifact_location))
        if found.lifecycle_stage != "active":
            raise TrackingError(
                f"the experiment {experiment!r} was deleted: restore it with "
                f"`mlflow experiments restore -x {found.experiment_id}`, or choose another tracking.experiment"
            )
        return str(found.experiment_id)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what MLflow and the libraries below it raise into a TrackingError without credentials."""
    try:
        yield
    except (ConfigError, TrackingError):
        raise
    except ImportError as error:
        raise TrackingError(f"{what}: {missing_hint(error) or error}") from error
    except Exception as error:  # MLflow lets through what SQLAlchemy, requests and boto3 raise.
        raise TrackingError(f"{what}: {scrub(str(error)) or type(error).__name__}") from error


@contextmanager
def _database_lock(uri: str) -> Iterator[None]:
    prefix = "sqlite:///"
    path = Path(uri.removeprefix(prefix)).with_suffix(".lock") if uri.startswith(prefix) else None
    try:
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("w") if path else nullcontext()
    except OSError as error:
        raise TrackingError(f"the tracking database {scrub(uri)} can't be opened: {error}") from error
    with stream as file:
        if file is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _ask(uri: str, seconds: float) -> str:
    """Return why the server is away, or "" when it answers."""
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
