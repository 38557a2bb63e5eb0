"""Pods of a TrainJob: obstacles to their start, and causes of failures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qatline.components.support.credentials import scrub
from qatline.components.trainjob.kubernetes_api import KubernetesApi, KubernetesError
from qatline.components.trainjob.objects import NODE

if TYPE_CHECKING:
    from kubernetes.client import V1Pod

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


def list_pods(api: KubernetesApi, job: str) -> list[V1Pod]:
    """Return a TrainJob's pods.

    Raises:
        KubernetesError: the server is unreachable or refuses.
    """
    selector = f"{JOBSET_LABEL}={job}"
    found = api.call(api.core.list_namespaced_pod, namespace=api.namespace, label_selector=selector)
    return list(found.items)


def obstacles(pods: list[V1Pod]) -> Iterator[str]:
    """Yield a line for each pod that cannot start at present because of image, node or secret."""
    for pod in pods:
        name = pod.metadata.name
        for condition in pod.status.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False":
                yield f"pod {name} has no node: {condition.message or 'no reason given'}"
        for container in pod.status.container_statuses or ():
            waiting = container.state and container.state.waiting
            if waiting and waiting.reason not in (None, "ContainerCreating", "PodInitializing"):
                told = ": ".join(filter(None, (waiting.reason, waiting.message)))
                yield f"pod {name} waits: {told}"


def first_failed(pods: list[V1Pod]) -> FailedPod | None:
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
    try:
        log = _read_log(api, pod.name)
    except KubernetesError as error:
        lines.append(f"Its log can't be read: {error}")
        log = pod.message
    if log.strip():
        lines += ["The last lines of its log:", scrub(log.strip())]
    return "\n".join(lines)


def _read_log(api: KubernetesApi, pod: str) -> str:
    def read(**arguments: Any) -> bytes:
        # Without _preload_content, the package decodes strictly and fails on other encodings.
        content: bytes = api.core.read_namespaced_pod_log(_preload_content=False, **arguments).data
        return content

    log = api.call(read, name=pod, namespace=api.namespace, container=NODE, tail_lines=_LOG_LINES)
    return log.decode("utf-8", "replace")


def _failure(pod: V1Pod) -> FailedPod | None:
    name, status = pod.metadata.name, pod.status
    worker = (pod.metadata.labels or {}).get(INDEX_LABEL, "?")
    for container in status.container_statuses or ():
        ended = container.state and container.state.terminated
        if container.name == NODE and ended and ended.exit_code:
            return FailedPod(
                name=name,
                worker=worker,
                code=ended.exit_code,
                reason=ended.reason or "",
                message=ended.message or "",
                ended=str(ended.finished_at or ""),
            )
    # Evicted or unschedulable: the pod failed without an exit code of the container.
    if status.phase != "Failed":
        return None
    return FailedPod(
        name=name,
        worker=worker,
        code=None,
        reason=status.reason or "",
        message=status.message or "",
        ended="",
    )
