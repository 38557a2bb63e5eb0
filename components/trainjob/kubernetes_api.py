"""Kubernetes API client for pods, with the service account's token over HTTPS.

A launcher requests a few objects in its own namespace and needs no client library. Requests are
repeated after transient errors (too many requests, a restarting server, a broken connection).
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from qat_lib.errors import QatlineError
from qatline.components.support.credentials import scrub

ACCOUNT_VARIABLE = "QATLINE_SERVICE_ACCOUNT"
"""Folder of the service account's token, for clusters with another mount path."""

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_TIMEOUT = 30.0  # seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds

_log = logging.getLogger(__name__)


class KubernetesError(QatlineError, RuntimeError):
    """The Kubernetes API cannot be reached or refuses.

    Attributes:
        code: HTTP status; 0 without a response.
        status: Kubernetes's ``Status`` object; empty if the response contains none.
    """

    def __init__(
        self, message: str, *, code: int = 0, status: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = dict(status or {})


@dataclass(frozen=True, kw_only=True)
class KubernetesApi:
    """Requests to a Kubernetes API server.

    Args:
        server: address, such as ``https://10.0.0.1:443``.
        namespace: namespace of the pod.
        account: folder with ``token`` and ``ca.crt``, both read for each request since they change.
        patience: maximum seconds for repeating a request.
        sleep: waits between two attempts.
        clock: monotonic clock in seconds.
    """

    server: str
    namespace: str
    account: Path
    patience: float = 300.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the JSON of the response.

        Raises:
            KubernetesError: the server refuses, or does not respond in time.
        """
        return json.loads(self._patiently(method, path, body, query))

    def text(self, path: str, *, query: Mapping[str, str] | None = None) -> str:
        """Return the text of the response, such as the log of a pod.

        Raises:
            KubernetesError: the server refuses, or does not respond in time.
        """
        return self._patiently("GET", path, None, query).decode("utf-8", "replace")

    def _patiently(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
    ) -> bytes:
        """Send a request until its result is not a transient error."""
        deadline, pause = self.clock() + self.patience, _FIRST_PAUSE
        while True:
            try:
                return self._send(method, path, body, query)
            except KubernetesError as error:
                passing = error.code == 0 or error.code in _PASSING
                if not passing or self.clock() + pause > deadline:
                    raise
                _log.warning("%s; asking again in %.0f s", error, pause)
            self.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
    ) -> bytes:
        address = f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")
        request = urllib.request.Request(
            address,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Accept": "application/json, */*",
                "Authorization": f"Bearer {self._token()}",
                "Content-Type": "application/json",
            },
            method=method,
        )
        what = f"{method} {path}"
        try:
            with urllib.request.urlopen(
                request, timeout=_TIMEOUT, context=self._trust()
            ) as response:
                content: bytes = response.read()
                return content
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(what, error.code, error.read()) from error
        except (OSError, http.client.HTTPException) as error:
            reason = scrub(str(getattr(error, "reason", error)))
            raise KubernetesError(
                f"The Kubernetes API {self.server} does not answer {what}: {reason}"
            ) from error

    def _token(self) -> str:
        path = self.account / "token"
        try:
            return path.read_text(encoding="ascii").strip()
        except OSError as error:
            raise KubernetesError(
                f"Expected the token of the pod's service account in {path}, received: "
                f"{error.strerror}. Leave automountServiceAccountToken on for the pod.",
                code=401,
            ) from error

    def _trust(self) -> ssl.SSLContext | None:
        if not self.server.startswith("https://"):
            return None
        # The API server's certificate is signed by the cluster's own CA, unknown to the system.
        return ssl.create_default_context(cafile=str(self.account / "ca.crt"))


def from_pod(
    environment: Mapping[str, str] | None = None, *, patience: float = 300.0
) -> KubernetesApi:
    """Return the API server of the cluster that runs this pod.

    Args:
        environment: environment variables. Default: ``os.environ``.
        patience: maximum seconds for repeating a request.

    Raises:
        KubernetesError: this process is not in a pod, or the pod has no service account.
    """
    values = os.environ if environment is None else environment
    host, port = values.get("KUBERNETES_SERVICE_HOST"), values.get("KUBERNETES_SERVICE_PORT", "443")
    account = Path(values.get(ACCOUNT_VARIABLE) or _ACCOUNT)
    if not host:
        raise KubernetesError(
            "Expected a pod of a Kubernetes cluster (KUBERNETES_SERVICE_HOST), received none. A "
            "step with several workers is a TrainJob on a cluster only; elsewhere: qatline run."
        )
    try:
        namespace = (account / "namespace").read_text(encoding="ascii").strip()
    except OSError as error:
        raise KubernetesError(
            f"Expected the pod's namespace in {account}, received: {error.strerror}. Leave "
            "automountServiceAccountToken on for the pod."
        ) from error
    name = f"[{host}]" if ":" in host else host
    server = f"https://{name}:{port}"
    return KubernetesApi(server=server, namespace=namespace, account=account, patience=patience)


def _refusal(what: str, code: int, content: bytes) -> KubernetesError:
    text = content.decode("utf-8", "replace").strip()
    try:
        status = json.loads(text)
    except ValueError:
        status = {}
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {}
    reason = scrub(str(status.get("message") or text)[:1000])
    return KubernetesError(
        f"The Kubernetes API answers {code} to {what}: {reason}", code=code, status=status
    )
