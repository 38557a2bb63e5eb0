"""TrainJobs in the cluster: search, creation, deletion, also after a killed launcher."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from qatline.components.trainjob.job_state import read_job_state
from qatline.components.trainjob.kubernetes_api import KubernetesApi, KubernetesError, from_pod
from qatline.components.trainjob.objects import FORMS, GROUP, RUN_LABEL, VERSION

INSTALL = (
    "Install Kubeflow Trainer v2 (kubectl apply --server-side -k "
    "'https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.1.0') and then "
    "qatline's runtime: qatline cluster runtime | kubectl apply --server-side -f -"
)
_REFUSED = frozenset({400, 403, 422})


_RETRIES = 6  # within about a minute

_log = logging.getLogger(__name__)


class TrainJobs:
    """TrainJobs in the pod's namespace.

    Args:
        api: the Kubernetes API.
    """

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._methods = api.custom

    def find(self, name: str) -> dict[str, Any] | None:
        """Return a TrainJob, or None if it does not exist.

        Raises:
            KubernetesError: Trainer is not installed, or the server is unreachable or refuses.
        """
        try:
            found: dict[str, Any] = self._call(
                self._methods.get_namespaced_custom_object, name=name
            )
        except KubernetesError as error:
            if error.code != 404 or not error.status:
                raise
            return None
        return found

    def create(self, make: Callable[[str], Mapping[str, Any]]) -> dict[str, Any]:
        """Create a TrainJob and return it, or return an existing one of the same name.

        Args:
            make: returns the object for one of ``FORMS``. The first form supported by the installed
                Trainer is used; unknown fields are reported as errors.

        Raises:
            KubernetesError: Trainer is not installed, or the server is unreachable or refuses.
        """
        for form in FORMS:
            body = make(form)
            try:
                created: dict[str, Any] = self._call(
                    self._methods.create_namespaced_custom_object,
                    body=body,
                    field_validation="Strict",
                )
            except KubernetesError as error:
                # Conflict: an earlier request succeeded although its response was lost.
                if error.code == 409:
                    return self._request_existing(body["metadata"]["name"], error)
                if form != FORMS[-1] and f'unknown field "spec.{form}"' in str(error):
                    continue
                raise _explained(error, body) from error
            return created
        raise AssertionError("the last form returns or raises")

    def delete(self, name: str) -> None:
        """Delete a TrainJob and its pods, if it exists.

        Raises:
            KubernetesError: the server is unreachable or refuses.
        """
        try:
            # Foreground: the TrainJob remains visible until its pods are gone.
            self._call(
                self._methods.delete_namespaced_custom_object,
                name=name,
                propagation_policy="Foreground",
            )
        except KubernetesError as error:
            if error.code != 404:
                raise

    def of_run(self, run: str) -> list[dict[str, Any]]:
        """Return the TrainJobs of a pipeline run.

        Raises:
            KubernetesError: Trainer is not installed, or the server is unreachable or refuses.
        """
        answer = self._call(
            self._methods.list_namespaced_custom_object, label_selector=f"{RUN_LABEL}={run}"
        )
        return list(answer.get("items") or ())

    def _request_existing(self, name: str, conflict: KubernetesError) -> dict[str, Any]:
        found = self.find(name)
        if found is None:
            raise conflict
        return found

    def _call(self, method: Callable[..., Any], **arguments: Any) -> Any:
        place = {"group": GROUP, "version": VERSION, "plural": "trainjobs"}
        try:
            return self._api.call(method, namespace=self._api.namespace, **place, **arguments)
        except KubernetesError as error:
            # For known kinds, the server returns a Status object.
            if error.code == 404 and not error.status:
                raise KubernetesError(
                    f"The cluster has no TrainJobs ({GROUP}/{VERSION}). {INSTALL}", code=404
                ) from error
            raise


def _explained(error: KubernetesError, body: Mapping[str, Any]) -> KubernetesError:
    """Return the error of a rejected TrainJob with advice."""
    if error.code not in _REFUSED:
        return error
    if "cannot create resource" in str(error):
        advice = "Let the service account of the run create TrainJobs: qatline cluster runtime"
    else:
        runtime = body["spec"]["runtimeRef"]
        advice = (
            f"The {runtime['kind']} {runtime['name']!r} must be there: qatline cluster runtime | "
            "kubectl apply --server-side -f -"
        )
    return KubernetesError(f"{error}. {advice}", code=error.code, status=error.status)


def delete_leftovers(run: str, api: KubernetesApi | None = None) -> list[str]:
    """Delete the unfinished TrainJobs of a pipeline run that has ended.

    Failures are logged.

    Args:
        run: id of the pipeline run.
        api: the Kubernetes API. Default: that of the pod's own cluster.

    Returns:
        The names of the deleted TrainJobs.
    """
    deleted: list[str] = []
    try:
        jobs = TrainJobs(api or from_pod(retries=_RETRIES))
        for job in jobs.of_run(run):
            if not read_job_state(job).ended:
                name = job["metadata"]["name"]
                jobs.delete(name)
                deleted.append(name)
                _log.warning("TrainJob %s is deleted: its pipeline run is over", name)
    except KubernetesError as error:
        _log.warning("TrainJobs of run %s may be left in the cluster: %s", run, error)
    return deleted
