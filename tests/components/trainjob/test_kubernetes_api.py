"""Requests of a pod to the API server: account, trust, transient errors and refusals."""

import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from certificates import certificate
from fake_kubernetes import FakeKubernetes
from kubernetes.config import incluster_config

from qatline.components.trainjob.kubernetes_api import KubernetesApi, KubernetesError, from_pod


def list_pods(api: KubernetesApi) -> list[Any]:
    found = api.call(api.core.list_namespaced_pod, namespace="team", label_selector="a=b")
    return list(found.items)


@pytest.fixture
def pod(cluster: FakeKubernetes, tmp_path: Path) -> Callable[[], KubernetesApi]:
    """Return the API as a pod of the cluster sees it, over HTTPS."""
    key, trusted = certificate(tmp_path)
    cluster.serve_tls(key, trusted)
    (tmp_path / "namespace").write_text("team\n")
    (tmp_path / "token").write_text(cluster.token)
    (tmp_path / "ca.crt").write_bytes(trusted.read_bytes())
    host, _, port = cluster.url.removeprefix("https://").partition(":")
    variables = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    return lambda: from_pod({**variables, "QATLINE_SERVICE_ACCOUNT": str(tmp_path)}, retries=0)


@pytest.mark.parametrize("fault", [429, 500, 503, None])
def test_call_repeats_after_transient_errors(
    cluster: FakeKubernetes, api: KubernetesApi, fault: int | None
) -> None:
    cluster.faults = [fault] * api.retries
    assert list_pods(api) == []
    assert cluster.faults == []


def test_call_gives_up_after_its_retries(cluster: FakeKubernetes, api: KubernetesApi) -> None:
    cluster.faults = [503] * 50
    with pytest.raises(KubernetesError, match="answers 503: fault 503"):
        list_pods(api)
    assert len(cluster.faults) == 50 - 1 - api.retries


def test_default_retries_last_five_minutes(
    cluster: FakeKubernetes, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time.sleep", pauses.append)
    cluster.faults = [503] * 50
    with pytest.raises(KubernetesError, match="answers 503"):
        list_pods(KubernetesApi(configuration=api.configuration, namespace="team"))
    assert pauses[:5] == [2, 4, 8, 16, 30]
    assert sum(pauses) == 300


@pytest.mark.parametrize("code", [400, 403, 404, 409, 422])
def test_call_repeats_no_refusal(cluster: FakeKubernetes, api: KubernetesApi, code: int) -> None:
    cluster.faults = [code]
    with pytest.raises(KubernetesError) as caught:
        list_pods(api)
    assert caught.value.code == code
    assert caught.value.status["reason"] == "InternalError"


def test_call_reports_an_unreachable_server(cluster: FakeKubernetes, api: KubernetesApi) -> None:
    cluster.close()
    with pytest.raises(
        KubernetesError, match=rf"{cluster.url} does not answer: .*refused"
    ) as caught:
        list_pods(replace(api, retries=0))
    assert caught.value.code == 0


def test_call_reports_a_slow_server(
    cluster: FakeKubernetes, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qatline.components.trainjob.kubernetes_api._TIMEOUT", 1)
    with cluster._lock, pytest.raises(KubernetesError, match=r"does not answer: .*timed out"):
        list_pods(replace(api, retries=0))


def test_call_never_logs_the_token(
    cluster: FakeKubernetes, api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    cluster.faults = [503, None, 401]
    with pytest.raises(KubernetesError, match="answers 401") as caught:
        list_pods(api)
    assert "Retry" in caplog.text
    assert cluster.token not in f"{caplog.text} {caught.value} {caught.value.__cause__}"


def test_from_pod_reads_a_replaced_token(
    cluster: FakeKubernetes,
    pod: Callable[[], KubernetesApi],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = pod()
    assert api.namespace == "team"
    assert list_pods(api) == []
    cluster.token = "next"
    (tmp_path / "token").write_text("next")
    later = SimpleNamespace(now=lambda: datetime.now() + timedelta(minutes=2))
    monkeypatch.setattr(
        incluster_config, "datetime", SimpleNamespace(datetime=later, timedelta=timedelta)
    )
    assert list_pods(api) == []


def test_from_pod_connects_without_a_proxy(
    pod: Callable[[], KubernetesApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert list_pods(pod()) == []


def test_from_pod_trusts_only_the_clusters_authority(
    pod: Callable[[], KubernetesApi], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "ca.crt").write_bytes(certificate(other)[1].read_bytes())
    with pytest.raises(KubernetesError, match="certificate verify failed"):
        list_pods(pod())


@pytest.mark.parametrize("name", ["namespace", "token", "ca.crt"])
def test_from_pod_requires_a_service_account(
    pod: Callable[[], KubernetesApi], tmp_path: Path, name: str
) -> None:
    (tmp_path / name).unlink()
    with pytest.raises(KubernetesError, match=r"Expected the pod's service account in .*automount"):
        pod()


def test_from_pod_requires_a_pod() -> None:
    with pytest.raises(KubernetesError, match=r"KUBERNETES_SERVICE_HOST.*qatline run"):
        from_pod({})


def test_missing_package_prevents_no_import() -> None:
    code = (
        "import sys; sys.modules.update({'kubernetes': None, 'urllib3': None})\n"
        "from qatline.components.runtime import train_job_component\n"
        "from qatline.components.trainjob.jobs import delete_leftovers\n"
        "print(delete_leftovers('1'))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
