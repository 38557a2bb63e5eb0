"""Access of a pod to the Kubernetes API, with the ``kubernetes`` package.

kfp installs the package, so that every image of the pipeline contains it. It is imported when the
first request is made: compiling a pipeline and running one locally do not need it.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qat_lib.errors import QatlineError
from qatline.components.support.credentials import scrub

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration, CoreV1Api, CustomObjectsApi

ACCOUNT_VARIABLE = "QATLINE_SERVICE_ACCOUNT"
"""Folder of the service account's token, for clusters with another mount path."""

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_TIMEOUT = 30  # seconds; the package ignores a float
_LONGEST_PAUSE = 30  # seconds

_T = TypeVar("_T")


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
    """Requests to a Kubernetes API server, repeated after transient errors.

    Args:
        configuration: server and credentials.
        namespace: namespace of the pod.
        retries: maximum number of repetitions of a request.
        backoff: factor of the pauses, which are 0, 2, 4, 8, 16, 30, 30, ... seconds. The default
            pauses add up to 5 minutes.
    """

    configuration: Configuration
    namespace: str
    retries: int = 14
    backoff: float = 1.0

    @cached_property
    def core(self) -> CoreV1Api:
        """Methods for pods and their logs."""
        from kubernetes.client import CoreV1Api

        return CoreV1Api(self._client)

    @cached_property
    def custom(self) -> CustomObjectsApi:
        """Methods for TrainJobs."""
        from kubernetes.client import CustomObjectsApi

        return CustomObjectsApi(self._client)

    def call(self, method: Callable[..., _T], **arguments: Any) -> _T:
        """Call a method of ``core`` or ``custom`` and return its result.

        Raises:
            KubernetesError: the server refuses, or does not respond in time.
        """
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return method(**arguments, _request_timeout=_TIMEOUT)
        except (ApiException, ValueError) as error:
            if isinstance(error, ApiException) and error.status:
                raise _refusal(error.status, error.body or error.reason) from error
            # The package reports JSON that contradicts its models by both classes.
            reason = scrub(str(getattr(error, "reason", error)))
            raise KubernetesError(
                f"The answer of the Kubernetes API {self.configuration.host} is invalid: {reason}"
            ) from error
        except (OSError, HTTPError) as error:
            # urllib3's MaxRetryError contains the cause of the last attempt.
            reason = scrub(str(getattr(error, "reason", error)))
            raise KubernetesError(
                f"The Kubernetes API {self.configuration.host} does not answer: {reason}"
            ) from error

    @cached_property
    def _client(self) -> ApiClient:
        from kubernetes.client import ApiClient
        from urllib3 import Retry

        configuration = copy.copy(self.configuration)
        configuration.retries = Retry(
            total=self.retries,
            status_forcelist=_TRANSIENT,
            # Creations, too: a repeated one answers 409, and the existing object is used.
            allowed_methods=None,
            backoff_factor=self.backoff,
            backoff_max=_LONGEST_PAUSE,
            # A busy server asks for pauses of 1 second: all attempts would end within seconds.
            respect_retry_after_header=False,
            raise_on_status=False,
        )
        return ApiClient(configuration)


def from_pod(environment: Mapping[str, str] | None = None, *, retries: int = 14) -> KubernetesApi:
    """Return the API server of the cluster that runs this pod.

    Args:
        environment: environment variables. Default: ``os.environ``.
        retries: maximum number of repetitions of a request.

    Raises:
        KubernetesError: this process is not in a pod, or the pod has no service account.
    """
    values = os.environ if environment is None else environment
    if not values.get("KUBERNETES_SERVICE_HOST"):
        raise KubernetesError(
            "Expected a pod of a Kubernetes cluster (KUBERNETES_SERVICE_HOST), received none. A "
            "step with several workers is a TrainJob on a cluster only; elsewhere: qatline run."
        )
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException
    from kubernetes.config.incluster_config import InClusterConfigLoader

    account = Path(values.get(ACCOUNT_VARIABLE) or _ACCOUNT)
    configuration = Configuration()
    try:
        namespace = (account / "namespace").read_text(encoding="ascii").strip()
        # Reads the token again every minute: Kubernetes replaces it while the pod runs.
        InClusterConfigLoader(
            token_filename=str(account / "token"),
            cert_filename=str(account / "ca.crt"),
            environ=values,
        ).load_and_set(configuration)
    except (OSError, ConfigException) as error:
        raise KubernetesError(
            f"Expected the pod's service account in {account}, received: {error}. Leave "
            "automountServiceAccountToken on for the pod."
        ) from error
    return KubernetesApi(configuration=configuration, namespace=namespace, retries=retries)


def _refusal(code: int, content: str | bytes) -> KubernetesError:
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    try:
        status = json.loads(text)
    except ValueError:
        status = {}
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {}
    reason = scrub(str(status.get("message") or text.strip())[:1000])
    return KubernetesError(f"The Kubernetes API answers {code}: {reason}", code=code, status=status)
