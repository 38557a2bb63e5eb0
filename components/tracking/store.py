"""The tracking store itself: is it there, and is its database ready."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from urllib.parse import urlsplit

from components.runtime.credentials import (
    S3_ENDPOINT_VARIABLES,
    check_address,
    check_variables,
    scrub,
)
from components.runtime.disk_errors import AFTER_FULL, is_disk_full
from components.tracking.database import database_path, prepared_database
from qat_lib.errors import QatlineError, TrackingError
from qat_lib.extras import missing_hint

PROBE_SECONDS = 3.0
_AWAY = frozenset({502, 503, 504})


def probe(uri: str, *, seconds: float = PROBE_SECONDS) -> None:
    """Check within ``seconds`` that something answers at the tracking URI.

    MLflow itself would retry for minutes.

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
    # The timeout of urlopen covers neither name resolution nor several addresses in turn; waiting
    # does.
    thread = threading.Thread(target=lambda: outcome.append(_ask(uri, seconds)), daemon=True)
    thread.start()
    thread.join(seconds)
    reason = outcome[0] if outcome else f"no answer within {seconds:g} s"
    if reason:
        raise TrackingError(
            f"the tracking server {scrub(uri)} can't be reached: {scrub(reason)}. Start it, "
            "correct tracking.uri, or set tracking.required=false to run without it."
        )


def ensure_store(uri: str, experiment: str, artifact_location: str | None = None) -> str:
    """Prepare the tracking store for concurrent steps, and return the experiment's id.

    A new SQLite database is created here, under a lock, and appears complete or not at all: two
    processes that create it at once would break each other's migration. Call it once, before the
    first step.

    Args:
        uri: the tracking URI, such as ``sqlite:////runs/mlflow.db`` or ``https://mlflow.example``.
        experiment: name of the experiment, which is made when it is missing.
        artifact_location: where a new experiment keeps its artifacts; an existing one keeps its
            own.

    Raises:
        TrackingError: the store can't be reached, opened or used.
    """
    probe(uri)
    with translated(f"the tracking store {scrub(uri)} can't be used"), _complete(uri):
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            return str(client.create_experiment(experiment, artifact_location=artifact_location))
        if found.lifecycle_stage != "active":
            raise TrackingError(
                f"the experiment {experiment!r} was deleted: restore it with "
                f"`mlflow experiments restore -x {found.experiment_id}`, or choose another "
                "tracking.experiment"
            )
        return str(found.experiment_id)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Translate errors of MLflow and its libraries into a TrackingError.

    Secrets are removed.
    """
    try:
        yield
    except QatlineError:
        raise
    except ImportError as error:
        raise TrackingError(f"{what}: {missing_hint(error) or error}") from error
    except Exception as error:  # MLflow lets through what SQLAlchemy, requests and boto3 raise.
        raise TrackingError(f"{what}: {_reason(error)}") from error


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
