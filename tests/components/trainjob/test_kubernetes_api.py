"""Requests of a pod to the API server: token, trust, answers that pass and that stay."""

from dataclasses import replace
from pathlib import Path

import pytest
from certificates import certificate
from fake_kubernetes import FakeKubernetes

from qatline.components.trainjob.kubernetes_api import KubernetesApi, KubernetesError, from_pod

PODS = "/api/v1/namespaces/team/pods"
QUERY = {"labelSelector": "a=b"}


def test_request_sends_the_token_as_it_is_now(cluster: FakeKubernetes, api: KubernetesApi) -> None:
    assert api.request("GET", PODS, query=QUERY)["items"] == []
    cluster.token = "next"
    with pytest.raises(KubernetesError, match="answers 401 to GET /api/v1/namespaces/team/pods"):
        api.request("GET", PODS, query=QUERY)
    (api.account / "token").write_text("next")
    assert api.request("GET", PODS, query=QUERY)["items"] == []


@pytest.mark.parametrize("fault", [429, 500, 503, None])
def test_request_asks_again_after_faults_that_pass(
    cluster: FakeKubernetes, api: KubernetesApi, fault: int | None
) -> None:
    pauses: list[float] = []
    cluster.faults = [fault, fault]
    found = replace(api, sleep=pauses.append).request("GET", PODS, query=QUERY)
    assert found["items"] == []
    assert pauses == [1, 2]


def test_request_gives_up_after_its_patience(cluster: FakeKubernetes, api: KubernetesApi) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    cluster.faults = [503] * 50
    with pytest.raises(KubernetesError, match=r"answers 503 .*: fault 503"):
        replace(api, patience=100, sleep=sleep, clock=lambda: now[0]).request("GET", PODS)
    # 1 + 2 + 4 + 8 + 16 + 30 + 30; the next pause would end after 100 s.
    assert now[0] == 91


@pytest.mark.parametrize("code", [400, 403, 404, 409, 422])
def test_request_repeats_no_refusal(cluster: FakeKubernetes, api: KubernetesApi, code: int) -> None:
    cluster.faults = [code]
    with pytest.raises(KubernetesError) as caught:
        api.request("GET", PODS, query=QUERY)
    assert caught.value.code == code
    assert caught.value.status["reason"] == "InternalError"


def test_request_tells_of_a_server_that_is_away(
    cluster: FakeKubernetes, api: KubernetesApi
) -> None:
    cluster.close()
    with pytest.raises(KubernetesError, match=r"does not answer GET .*refused") as caught:
        replace(api, patience=0).request("GET", PODS)
    assert caught.value.code == 0


def test_a_pod_without_a_token_is_told(api: KubernetesApi) -> None:
    (api.account / "token").unlink()
    with pytest.raises(KubernetesError, match="automountServiceAccountToken"):
        api.request("GET", PODS)


def test_from_pod_reads_what_kubernetes_gives_a_pod(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("team\n")
    given = {"QATLINE_SERVICE_ACCOUNT": str(tmp_path), "KUBERNETES_SERVICE_HOST": "fd00::1"}
    found = from_pod({**given, "KUBERNETES_SERVICE_PORT": "6443"})
    assert (found.server, found.namespace, found.account) == (
        "https://[fd00::1]:6443",
        "team",
        tmp_path,
    )
    assert (
        from_pod({**given, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}).server == "https://10.0.0.1:443"
    )


def test_from_pod_is_refused_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(KubernetesError, match=r"KUBERNETES_SERVICE_HOST.*qatline run"):
        from_pod({})
    with pytest.raises(KubernetesError, match=r"Expected the pod's namespace in .*No such file"):
        from_pod({"KUBERNETES_SERVICE_HOST": "h", "QATLINE_SERVICE_ACCOUNT": str(tmp_path)})


def test_https_trusts_the_clusters_authority_alone(
    cluster: FakeKubernetes, api: KubernetesApi, tmp_path: Path
) -> None:
    key, trusted = certificate(tmp_path)
    cluster.serve_tls(key, trusted)
    secure = replace(api, server=cluster.url, patience=0)
    (api.account / "ca.crt").write_bytes(trusted.read_bytes())
    assert secure.request("GET", PODS, query=QUERY)["items"] == []
    other = tmp_path / "other"
    other.mkdir()
    (api.account / "ca.crt").write_bytes(certificate(other)[1].read_bytes())
    with pytest.raises(KubernetesError, match="certificate verify failed"):
        secure.request("GET", PODS, query=QUERY)
