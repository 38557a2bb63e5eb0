"""Pods of a TrainJob: obstacles to their start, and causes of failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qatline.components.support.credentials import scrub
from qatline.components.trainjob.kubernetes_api import KubernetesApi, KubernetesError
from qatline.components.trainjob.objects import NODE

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_LOG_LINES = 40
_ADVICE = {
    "OOMKilled": "Raise the step's memory (cluster.steps) or lower its batch size.",
    "Evicted": "Set the step's memory request (cluster.steps).",
}


@dataclass(frozen=True, kw_only=True)
class FailedPod:
    """A pod that ended with an error.

    Args:
        name: name of the pod.
        worker: index of the worker.
        code: exit code; None if the container did not run.
        reason: Kubernetes's reason, such as ``Error`` or ``OOMKilled``.
        message: Kubernetes's message, possibly the end of the log.
        ended: end time as sortable text.
    """

    name: str
    worker: str
    code: int | None
    reason: str
    message: str
    ended: str


def list_pods(api: KubernetesApi, job: str) -> list[dict[str, Any]]:
    """Return a TrainJob's pods.

    Raises:
        KubernetesError: the server is unreachable or refuses.
    """
    answer = api.request(
        "GET",
        f"/api/v1/namespaces/{api.namespace}/pods",
        query={"labelSelector": f"{JOBSET_LABEL}={job}"},
    )
    return list(answer.get("items") or ())


def obstacles(pods: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each pod that cannot start at present because of image, node or secret."""
    for pod in pods:
        status, name = pod.get("status") or {}, pod["metadata"]["name"]
        for condition in status.get("conditions") or ():
            unscheduled = condition.get("type") == "PodScheduled"
            if unscheduled and condition.get("status") == "False":
                yield f"pod {name} has no node: {condition.get('message') or 'no reason given'}"
        for container in status.get("containerStatuses") or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                told = ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
                yield f"pod {name} waits: {told}"


def first_failed(pods: list[dict[str, Any]]) -> FailedPod | None:
    """Return the pod that failed first; its failure ends the others."""
    failed: list[FailedPod] = []
    for pod in pods:
        if (found := _failure(pod)) is not None:
            failed.append(found)
    return min(failed, key=lambda pod: (not pod.ended, pod.ended, pod.worker), default=None)


def describe_failure(api: KubernetesApi, pod: FailedPod) -> str:
    """Return a description of a failed pod, with the last lines of its log."""
    code = "" if pod.code is None else f" with exit code {pod.code}"
    lines = [f"Worker {pod.worker} (pod {pod.name}) ended{code}: {pod.reason or 'Error'}."]
    if advice := _ADVICE.get(pod.reason):
        lines.append(advice)
    path = f"/api/v1/namespaces/{api.namespace}/pods/{pod.name}/log"
    try:
        log = api.text(path, query={"container": NODE, "tailLines": str(_LOG_LINES)})
    except KubernetesError as error:
        lines.append(f"Its log can't be read: {error}")
        log = pod.message
    if log.strip():
        lines += ["The last lines of its log:", scrub(log.strip())]
    return "\n".join(lines)


def _failure(pod: Mapping[str, Any]) -> FailedPod | None:
    status, meta = pod.get("status") or {}, pod["metadata"]
    worker = (meta.get("labels") or {}).get(INDEX_LABEL, "?")
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if container.get("name") == NODE and ended and ended.get("exitCode"):
            return FailedPod(
                name=meta["name"],
                worker=worker,
                code=int(ended["exitCode"]),
                reason=ended.get("reason") or "",
                message=ended.get("message") or "",
                ended=ended.get("finishedAt") or "",
            )
    if status.get("phase") != "Failed":
        return None
    return FailedPod(
        name=meta["name"],
        worker=worker,
        code=None,
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        ended="",
    )
