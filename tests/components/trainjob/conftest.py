from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_kubernetes import FakeKubernetes

from qatline.components.trainjob.kubernetes_api import KubernetesApi
from qatline.components.trainjob.task import JobTemplate, WorkerTask


@pytest.fixture
def cluster() -> Iterator[FakeKubernetes]:
    fake = FakeKubernetes()
    yield fake
    fake.close()


@pytest.fixture
def api(cluster: FakeKubernetes, tmp_path: Path) -> KubernetesApi:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text(f"{cluster.token}\n")
    return KubernetesApi(
        server=cluster.url, namespace="team", account=account, patience=5, sleep=lambda _: None
    )


@pytest.fixture
def template() -> JobTemplate:
    return JobTemplate(
        nodes=2,
        image="image:1",
        runtime="qatline-tensorflow",
        runtime_kind="ClusterTrainingRuntime",
    )


@pytest.fixture
def task() -> WorkerTask:
    return WorkerTask(
        step="train_baseline",
        settings={"training": {"epochs": 1}},
        seed=3,
        inputs={"dataset": "s3://bucket/dataset"},
        output="s3://bucket/baseline",
    )
