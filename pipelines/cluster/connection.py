"""Connection to a Kubeflow Pipelines server, with translated errors."""

from __future__ import annotations

import contextlib
import io
import json
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qat_lib.errors import QatlineError
from qatline.components.support.credentials import check_address

_PROBE_SECONDS = 5.0


class ClusterError(QatlineError, RuntimeError):
    """The Kubeflow Pipelines server cannot be reached or refuses."""


def open_kfp_client(host: str, *, namespace: str = "", token: str | None = None) -> tuple[Any, str]:
    """Return a ``kfp.Client`` and its address, after a quick probe of the server.

    The client itself would retry for half a minute.

    Raises:
        ConfigError: the address contains credentials.
        ClusterError: no server responds, or it is not a Kubeflow Pipelines server.
    """
    check_address(host, "--host")
    address = host.rstrip("/")
    _probe(address, token)
    import kfp

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        # Every client warns that it supports version 2 of the server only, as intended here.
        warnings.simplefilter("ignore", FutureWarning)
        client = kfp.Client(host=address, namespace=namespace or "kubeflow", existing_token=token)
    return client, address


@contextmanager
def client_errors(host: str, what: str) -> Iterator[None]:
    """Raise the client's errors as ClusterError; keep its links off stdout.

    Args:
        host: address of the server, for the message.
        what: the requested action, such as ``start the run``.
    """
    from kfp_server_api import ApiException  # type: ignore[import-untyped]
    from urllib3.exceptions import HTTPError

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except ApiException as error:
        raise ClusterError(f"The server {host} refused to {what}: {_reason(error)}") from error
    except HTTPError as error:
        raise ClusterError(f"The server {host} went away: {error}. Could not {what}.") from error


def _probe(address: str, token: str | None) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(f"{address}/apis/v2beta1/healthz", headers=headers)
        with urllib.request.urlopen(request, timeout=_PROBE_SECONDS) as answer:
            json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            hint = "Give a token." if error.code in (401, 403) else "Check the address."
        raise ClusterError(
            f"Expected a Kubeflow Pipelines server at {address}; it answers {error.code}. {hint}"
        ) from error
    except OSError as error:
        raise ClusterError(
            f"Expected a Kubeflow Pipelines server at {address}; nothing answers "
            f"({getattr(error, 'reason', error)}). Check the address; from outside the cluster: "
            "kubectl port-forward -n kubeflow svc/ml-pipeline 8888"
        ) from error
    except ValueError as error:
        raise ClusterError(
            f"Expected a Kubeflow Pipelines server at {address}; another service answers there. "
            "Check the address."
        ) from error


def _reason(error: Any) -> str:
    try:
        body = json.loads(error.body or "")
    except ValueError:
        body = {}
    text = body.get("message") or body.get("error") or error.reason or "no reason given"
    return f"{text} ({error.status})"
