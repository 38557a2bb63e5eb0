"""A launcher as a cluster runs it: the compiled component, an API server, the pods it asks for."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from certificates import certificate
from fake_kubernetes import FakeKubernetes
from local_pods import LocalPods
from pods import Pods

from qatline.components.artifacts import Baseline
from qatline.components.store.directories import describe, publish, verify_directory
from qatline.pipelines.cluster.compile import pipeline_ir
from qatline.pipelines.config.run_config import load_config

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]
STAND_IN = Path(__file__).parents[1] / "components" / "trainjob" / "stand_in_worker.py"
WORKERS = (
    "training={workers: 3, epochs: 2}",
    "cluster.secret_env={AWS_ACCESS_KEY_ID: s/a, AWS_SECRET_ACCESS_KEY: s/b}",
    "cluster.train_job.keep=always",
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    fake = FakeKubernetes()
    key, trusted = certificate(tmp_path)
    fake.serve_tls(key, trusted)
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text(fake.token)
    (account / "namespace").write_text("team")
    (account / "ca.crt").write_bytes(trusted.read_bytes())
    yield fake
    fake.close()


@pytest.fixture
def launchers(cluster: FakeKubernetes, tmp_path: Path) -> Pods:
    config = load_config(overrides=WORKERS)
    spec, _ = yaml.safe_load_all(pipeline_ir(config))
    host, _, port = cluster.url.removeprefix("https://").partition(":")
    environment = {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "QATLINE_SERVICE_ACCOUNT": str(tmp_path / "account"),
        "QATLINE_PIPELINE_RUN_ID": "kfp-1",
    }
    return Pods(spec=spec, folder=tmp_path / "kfp", environment=environment)


@pytest.fixture
def workers(cluster: FakeKubernetes, tmp_path: Path) -> Iterator[LocalPods]:
    command = [sys.executable, str(STAND_IN)]
    secrets = {"s/a": "access", "s/b": "secret"}
    started = LocalPods(
        cluster, tmp_path / "team", environment={}, secrets=secrets, command=command
    )
    yield started
    started.close()


def dataset(folder: Path) -> Path:
    work = folder / "work"
    work.mkdir()
    (work / "data").write_text("1, 2, 3")
    publish(work, folder / "dataset", describe(work))
    return folder / "dataset"


def test_compiled_launcher_hands_on_what_three_workers_made(
    cluster: FakeKubernetes, launchers: Pods, workers: LocalPods, tmp_path: Path
) -> None:
    training = load_config(overrides=WORKERS).pipeline_parameters()["training"]
    done = launchers.start(
        "train-baseline-component",
        "comp-train-baseline-component",
        {"training": training, "seed": 7},
        {"dataset": dataset(tmp_path)},
    )
    assert done.metadata("metrics") == {"workers": 3.0}
    baseline = done.artifacts["baseline"]
    assert verify_directory(baseline).step == "train_baseline"
    result = json.loads((baseline / "result.json").read_text())
    assert result["told"] == ["worker 1", "worker 2"]
    assert result["settings"]["training"]["epochs"] == 2
    assert result["seed"] == 7
    (job,) = cluster.jobs.values()
    assert job["metadata"]["labels"]["qatline/run"] == "kfp-1"
    assert f"TrainJob team/{job['metadata']['name']} of 3 nodes" in done.log


def test_exit_handler_of_the_run_deletes_a_job_that_still_runs(
    cluster: FakeKubernetes, launchers: Pods, workers: LocalPods, tmp_path: Path
) -> None:
    name = "qatline-train-baseline-0123456789"
    labels = {"qatline/run": "kfp-1"}
    cluster.jobs[name] = {"metadata": {"name": name, "labels": labels, "uid": "1"}}
    launchers.end("CANCELLED")
    assert cluster.jobs == {}


def of_one_process(dataset: Path, training: dict[str, Any], folder: Path) -> Baseline:
    """Train as one process does, without a TrainJob."""
    call = {
        "settings": {"training": {**training, "workers": 1}},
        "seed": 0,
        "inputs": {"dataset": str(dataset)},
        "output": str(folder / "alone"),
    }
    code = f"from qatline.components.runtime.step import *\nrun_component('train_baseline', **{call!r})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder)
    return Baseline(folder / "alone")


@pytest.mark.slow
def test_two_workers_train_what_one_process_trains(
    cluster: FakeKubernetes, launchers: Pods, tmp_path: Path
) -> None:
    pytest.importorskip(
        "qatline.components.workers.worker_config", reason="no loop for several workers"
    )
    quick = ("training={workers: 2, epochs: 2}", "qat.epochs=1", "data.limit=300")
    config = load_config(overrides=[*WORKERS[1:], *quick, "data.calibration_samples=32"])
    spec, _ = yaml.safe_load_all(pipeline_ir(config))
    pods = replace(launchers, spec=spec)
    secrets = {"s/a": "access", "s/b": "secret"}
    workers = LocalPods(cluster, tmp_path / "team", environment={}, secrets=secrets)
    try:
        for task in pods.order():
            done = pods.run(task)
            if task == "finetune-qat-component":
                break
    finally:
        logs = dict(cluster.logs)
        workers.close()
    assert verify_directory(done.artifacts["qat"]).step == "finetune_qat"
    told = sorted(log.splitlines()[0].partition(":")[0] for log in logs.values())
    assert told == ["worker 0 of 2"] * 2 + ["worker 1 of 2"] * 2
    baseline = Baseline(pods.finished["train-baseline-component"].artifacts["baseline"])
    data = pods.finished["prepare-data-component"].artifacts["dataset"]
    alone = of_one_process(data, config.pipeline_parameters()["training"], tmp_path)
    np.testing.assert_allclose(baseline.predictions(), alone.predictions(), atol=1e-2)
