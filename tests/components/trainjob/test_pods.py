"""The pods of a TrainJob: what keeps them waiting, which one failed, and its log."""

from typing import Any

import pytest
from fake_kubernetes import FakeKubernetes

from qatline.components.trainjob.kubernetes_api import KubernetesApi, KubernetesError
from qatline.components.trainjob.pods import describe_failure, first_failed, list_pods, obstacles


def ended(code: int, at: str | None = None, **told: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "finishedAt": at, **told}}


def test_list_pods_are_those_of_the_job(cluster: FakeKubernetes, api: KubernetesApi) -> None:
    mine = cluster.add_pod("a", 0, {"running": {}})
    cluster.add_pod("b", 0, {"running": {}})
    assert [pod.metadata.name for pod in list_pods(api, "a")] == [mine]


def test_obstacles_are_what_kubernetes_says(cluster: FakeKubernetes, api: KubernetesApi) -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: no GPU"}
    cluster.add_pod("a", 0, {"waiting": {"reason": "ImagePullBackOff", "message": "no image"}})
    cluster.add_pod("a", 1, {}, conditions=[unscheduled])
    cluster.add_pod("a", 2, {"waiting": {"reason": "ContainerCreating"}})
    cluster.add_pod("a", 3, {"running": {}}, conditions=[{"type": "Ready", "status": "False"}])
    assert list(obstacles(list_pods(api, "a"))) == [
        "pod a-node-0-0-x0y waits: ImagePullBackOff: no image",
        "pod a-node-0-1-x1y has no node: 0/3 nodes: no GPU",
    ]


def test_list_pods_reports_an_invalid_answer(cluster: FakeKubernetes, api: KubernetesApi) -> None:
    cluster.add_pod("a", 0, ended(1, "yesterday"))
    with pytest.raises(KubernetesError, match=r"answer of .* is invalid: Failed to parse `yest"):
        list_pods(api, "a")
    cluster.pods.clear()
    cluster.add_pod("a", 0, {}, conditions=[{"type": "Ready"}])
    with pytest.raises(KubernetesError, match=r"answer of .* is invalid: .*must not be `None`"):
        list_pods(api, "a")


def test_first_failed_is_the_one_that_others_follow(
    cluster: FakeKubernetes, api: KubernetesApi
) -> None:
    assert first_failed([]) is None
    cluster.add_pod("a", 0, ended(143, "2026-11-22T20:00:09Z"))
    cluster.add_pod("a", 1, ended(137, "2026-11-22T20:00:01Z", reason="OOMKilled"))
    cluster.add_pod("a", 2, ended(0, "2026-11-22T20:00:00Z"))
    failed = first_failed(list_pods(api, "a"))
    assert failed is not None
    assert (failed.worker, failed.code, failed.reason) == ("1", 137, "OOMKilled")


def test_first_failed_takes_a_pod_without_container(
    cluster: FakeKubernetes, api: KubernetesApi
) -> None:
    cluster.add_pod("a", 0, {}, phase="Failed", reason="Evicted", message="memory pressure")
    failed = first_failed(list_pods(api, "a"))
    assert failed is not None
    text = describe_failure(api, failed)
    assert text.startswith("Worker 0 (pod a-node-0-0-x0y) ended: Evicted.\nSet the step's memory")
    assert text.endswith("The last lines of its log:\nmemory pressure")


def test_describe_failure_ends_with_the_log(cluster: FakeKubernetes, api: KubernetesApi) -> None:
    name = cluster.add_pod("a", 1, ended(2, reason="Error"))
    cluster.logs[name] = "".join(f"line {number}\n" for number in range(100))
    cluster.logs[name] += "fetching https://user:secret1234@host/x\nConfigError: no such option\n"
    failed = first_failed(list_pods(api, "a"))
    assert failed is not None
    lines = describe_failure(api, failed).splitlines()
    assert lines[:2] == [
        f"Worker 1 (pod {name}) ended with exit code 2: Error.",
        "The last lines of its log:",
    ]
    assert len(lines) == 2 + 40
    assert lines[-2:] == ["fetching https://***@host/x", "ConfigError: no such option"]


def test_describe_failure_accepts_a_log_in_another_encoding(
    cluster: FakeKubernetes, api: KubernetesApi
) -> None:
    name = cluster.add_pod("a", 1, ended(2))
    cluster.logs[name] = "Gr\udcf6\udcdfe"  # the bytes of Latin-1
    failed = first_failed(list_pods(api, "a"))
    assert failed is not None
    assert describe_failure(api, failed).endswith("Gr\ufffd\ufffde")


def test_describe_failure_without_log_has_the_pods_message(
    cluster: FakeKubernetes, api: KubernetesApi
) -> None:
    cluster.add_pod("a", 0, ended(1, message="DataError: broken"))
    failed = first_failed(list_pods(api, "a"))
    assert failed is not None
    text = describe_failure(api, failed)
    assert "Its log can't be read: The Kubernetes API answers 404" in text
    assert text.endswith("DataError: broken")
