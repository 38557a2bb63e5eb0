"""A launched step from its component to its output: API server, pods and S3 on this machine."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import FakeKubernetes
from local_pods import LocalPods

from qat_lib.errors import ConfigError, StorageError
from qatline.components.runtime.train_job_component import (
    canceled_by_signal,
    run_as_train_job,
    take_output,
)
from qatline.components.store.directories import describe, publish
from qatline.components.store.remote_directories import store_artifact
from qatline.components.trainjob import launcher as launcher_module
from qatline.components.trainjob.kubernetes_api import KubernetesApi
from qatline.components.trainjob.launcher import TrainJobError
from qatline.components.trainjob.objects import job_name
from qatline.components.trainjob.task import JobTemplate, to_json

# botocore 1.44 on Python 3.12 and later.
pytestmark = pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")

NAME = job_name("1f2e", "train_baseline")
WORKER = [sys.executable, str(Path(__file__).parents[1] / "trainjob" / "stand_in_worker.py")]
SECRETS = {"s/a": "testing", "s/b": "testing"}
ENV = [
    {"name": "AWS_DEFAULT_REGION", "value": "us-east-1"},
    {"name": "AWS_ACCESS_KEY_ID", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a"}}},
    {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "b"}}},
]


class Metrics(dict[str, float]):
    """In place of ``kfp.dsl.Metrics``."""

    def log_metric(self, metric: str, value: float) -> None:
        self[metric] = value


def finished(folder: Path, name: str, text: str = "1, 2, 3") -> Path:
    work = folder / f"work-{name}"
    work.mkdir(parents=True)
    (work / "data").write_text(text)
    publish(work, folder / name, describe(work))
    return folder / name


@pytest.fixture
def launch(
    api: KubernetesApi,
    template: JobTemplate,
    s3: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., dict[str, float]]:
    """Run the component of ``train_baseline``; its data set is in S3."""
    endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
    env = [*ENV, {"name": "AWS_ENDPOINT_URL_S3", "value": endpoint}]
    monkeypatch.setenv("QATLINE_TRAIN_JOB", to_json(replace(template, env=env)))
    monkeypatch.setenv("QATLINE_PIPELINE_RUN_ID", "1f2e")
    monkeypatch.setattr(launcher_module, "_PAUSE", 0.1)
    store_artifact(finished(tmp_path, "dataset"), "s3://data/run/dataset")

    def launch(**changes: Any) -> dict[str, float]:
        given: dict[str, Any] = {
            "settings": {"training": {"epochs": 2}},
            "seed": 5.0,
            "inputs": {"dataset": "minio://data/run/dataset"},
            "output": str(tmp_path / "outputs" / "baseline"),
            "output_uri": "minio://data/run/baseline?endpoint=elsewhere",
            "api": api,
        }
        return run_as_train_job("train_baseline", **(given | changes))

    return launch


@pytest.fixture
def pods(cluster: FakeKubernetes, tmp_path: Path) -> Iterator[LocalPods]:
    started = LocalPods(cluster, tmp_path / "pods", environment={}, secrets=SECRETS, command=WORKER)
    yield started
    started.close()


@pytest.mark.matrix
def test_workers_meet_and_the_launcher_hands_their_output_on(
    cluster: FakeKubernetes,
    pods: LocalPods,
    launch: Callable[..., dict[str, float]],
    tmp_path: Path,
) -> None:
    shown = Metrics()
    assert launch(metrics_artifact=shown) == {"workers": 2.0} == shown
    result = json.loads((tmp_path / "outputs" / "baseline" / "result.json").read_text())
    assert result == {
        "told": ["worker 1"],
        "data": "1, 2, 3",
        "seed": 5,
        "settings": {"training": {"epochs": 2}},
        "checkpoint": "",
    }
    assert cluster.jobs == {}


@pytest.mark.matrix
def test_the_next_attempt_goes_on_from_the_last_checkpoint(
    cluster: FakeKubernetes,
    pods: LocalPods,
    launch: Callable[..., dict[str, float]],
    s3: Any,
    tmp_path: Path,
) -> None:
    def stored() -> list[str]:
        found = s3.list_objects_v2(Bucket="data", Prefix="run/baseline.checkpoints/")
        return [each["Key"] for each in found.get("Contents", ())]

    pods.environment = {"STAND_IN": "fail:0"}
    with pytest.raises(TrainJobError, match="worker 0 can't read its part"):
        launch()
    assert stored() == ["run/baseline.checkpoints/train_baseline/baseline.state"]
    pods.environment = {}
    launch()
    result = json.loads((tmp_path / "outputs" / "baseline" / "result.json").read_text())
    assert result["checkpoint"] == "epoch 1"
    assert stored() == []


@pytest.mark.matrix
def test_the_worker_that_failed_is_told(
    cluster: FakeKubernetes,
    pods: LocalPods,
    launch: Callable[..., dict[str, float]],
    tmp_path: Path,
) -> None:
    pods.environment = {"STAND_IN": "fail:1"}
    with pytest.raises(TrainJobError) as caught:
        launch()
    lines = str(caught.value).splitlines()
    assert f"Worker 1 (pod {NAME}-node-0-1-x1y) ended with exit code 1: Error." in lines
    assert lines[-2] == "DataError: worker 1 can't read its part"
    assert not (tmp_path / "outputs").exists()
    # The next attempt replaces it.
    pods.environment = {}
    assert launch() == {"workers": 2.0}


def test_sigterm_deletes_the_job_and_its_pods(
    cluster: FakeKubernetes,
    pods: LocalPods,
    launch: Callable[..., dict[str, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pods.environment = {"STAND_IN": "hang"}
    read = launcher_module.read_job_state

    def read_and_stop(job: Any) -> Any:
        # Here, not from a thread: at any other place, the exception may leave a lock of logging
        # locked, and the tests behind this one wait for it.
        if list(pods.alive()):
            os.kill(os.getpid(), signal.SIGTERM)
        return read(job)

    monkeypatch.setattr(launcher_module, "read_job_state", read_and_stop)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        launch()
    assert caught.value.code == 128 + signal.SIGTERM
    assert cluster.jobs == {}
    assert list(pods.alive()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_cancels_once() -> None:
    canceled: list[int] = []

    def cancel() -> None:
        canceled.append(1)
        os.kill(os.getpid(), signal.SIGTERM)

    def stop() -> None:
        with canceled_by_signal(cancel):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)

    with pytest.raises(SystemExit):
        stop()
    assert canceled == [1]


def test_nothing_is_created_for_wrong_arguments(
    cluster: FakeKubernetes,
    launch: Callable[..., dict[str, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="section training of step train_baseline is wrong"):
        launch(settings={"training": {"epochs": "many"}})
    with pytest.raises(ConfigError, match=r"received gs://bucket/x\. Set cluster\.pipeline_root"):
        launch(output_uri="gs://bucket/x")
    monkeypatch.delenv("QATLINE_PIPELINE_RUN_ID")
    with pytest.raises(ConfigError, match="id of the pipeline run as QATLINE_PIPELINE_RUN_ID"):
        launch()
    monkeypatch.delenv("QATLINE_TRAIN_JOB")
    with pytest.raises(ConfigError, match="QATLINE_TRAIN_JOB: expected a JobTemplate"):
        launch()
    assert cluster.calls == []


def test_workers_get_the_launchers_tracking_variables(
    cluster: FakeKubernetes,
    launch: Callable[..., dict[str, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "made by the backend")
    seen: dict[str, str] = {}

    def started(job: dict[str, Any]) -> None:
        for each in job["spec"]["trainer"]["env"]:
            seen[each["name"]] = each.get("value", "")
        cluster.end(job["metadata"]["name"], "Failed")

    cluster.started = lambda job: threading.Timer(0.1, started, [job]).start()
    with pytest.raises(TrainJobError):
        launch()
    assert seen["MLFLOW_RUN_ID"] == "made by the backend"
    assert seen["QATLINE_PIPELINE_RUN_ID"] == "1f2e"


def test_take_output_leaves_nothing_of_a_part(s3: Any, tmp_path: Path) -> None:
    store_artifact(finished(tmp_path, "whole"), "s3://data/whole")
    s3.put_object(Bucket="data", Key="whole/data", Body=b"4, 5, 6")
    target = tmp_path / "target"
    with pytest.raises(StorageError, match="is not whole"):
        take_output("s3://data/whole", target)
    assert not target.exists()


def test_take_output_checks_one_that_is_in_place(tmp_path: Path) -> None:
    place = finished(tmp_path, "whole")
    take_output(str(place), place)
    (place / "data").unlink()
    with pytest.raises(StorageError, match="data is missing"):
        take_output(str(place), place)
