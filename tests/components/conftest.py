"""An S3 server, and a stand-in for the API of a cluster."""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import FakeKubernetes

from qatline.components.storage.s3 import s3_client
from qatline.components.trainjob.kubernetes_api import KubernetesApi
from qatline.components.trainjob.task import JobTemplate, WorkerTask


@pytest.fixture(scope="module")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """moto's server in a process of its own."""
    pytest.importorskip("moto")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    log = (tmp_path_factory.mktemp("moto") / "log").open("w")
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "moto.server",
        "-H",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(endpoint, timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"moto did not come up: {Path(log.name).read_text()[-1000:]}")
                time.sleep(0.1)
        yield endpoint
    finally:
        process.terminate()
        process.wait(timeout=30)
        log.close()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of a fresh bucket ``data``; the environment points to it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    urllib.request.urlopen(
        urllib.request.Request(f"{s3_endpoint}/moto-api/reset", method="POST"), timeout=10
    ).close()
    client = s3_client()
    client.create_bucket(Bucket="data")
    return client


@pytest.fixture
def cluster() -> Iterator[FakeKubernetes]:
    fake = FakeKubernetes()
    yield fake
    fake.close()


@pytest.fixture
def api(cluster: FakeKubernetes) -> KubernetesApi:
    from kubernetes.client import Configuration

    authorization = {"authorization": f"Bearer {cluster.token}"}
    configuration = Configuration(host=cluster.url, api_key=authorization)
    return KubernetesApi(configuration=configuration, namespace="team", retries=3, backoff=0)


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
