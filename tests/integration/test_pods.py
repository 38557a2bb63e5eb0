"""Every component runs alone, as a cluster runs it: command, arguments and declared artifacts."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pods import Pods

from qatline.components.artifacts import Dataset, Evaluation, Promotion
from qatline.components.tracking.store import ensure_store, open_client
from qatline.pipelines.cluster.compile import pipeline_ir
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.steps import STEP_ARTIFACTS, step_of_task

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]
QUICK = (
    "training.epochs=2",
    "qat.epochs=1",
    "engine.benchmark_seconds=0.05",
    "gate={max_drop: 1, required: 0}",
    "tracking.uri=http://mlflow.example:5000",
)


def digits_folder(folder: Path, count: int) -> Path:
    """Write some digits as images, one sub-folder a class."""
    from PIL import Image
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    for index in range(count):
        place = folder / str(labels[index]) / f"{index}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.clip(images[index].reshape(8, 8) * 16, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pods, Any, str]:
    """The whole pipeline on an image folder, with one tracking store; a client and experiment."""
    folder = tmp_path_factory.mktemp("cluster")
    data = digits_folder(folder / "volume" / "digits", 400)
    config = load_config(
        overrides=[
            *QUICK,
            f"data={{kind: folder, path: {data}, image_size: [8, 8], color: gray}}",
            "data.calibration_samples=32",
            f"cluster.steps.prepare_data.volumes=[{{claim: c, path: {folder}/volume}}]",
        ]
    )
    spec, _ = yaml.safe_load_all(pipeline_ir(config))
    uri = f"sqlite:///{folder}/mlflow.db"
    experiment = ensure_store(uri, "qatline", (folder / "artifacts").as_uri())
    environment = {"MLFLOW_TRACKING_URI": uri, "QATLINE_PIPELINE_RUN_ID": "kfp-1"}
    pods = Pods(spec=spec, folder=folder, environment=environment)
    for task in pods.order():
        pods.run(task)
        # The volume is mounted into the first pod alone.
        shutil.rmtree(folder / "volume", ignore_errors=True)
    pods.end("SUCCEEDED")
    return pods, open_client(uri), experiment


def finished(pods: Pods) -> dict[str, Any]:
    return {step_of_task(name): done for name, done in pods.finished.items()}


@pytest.mark.slow
def test_every_step_runs_alone(run: tuple[Pods, Any, str]) -> None:
    steps = finished(run[0])
    assert list(steps) == list(STEP_ARTIFACTS)
    for name, done in steps.items():
        assert STEP_ARTIFACTS[name] in done.artifacts
        assert done.metadata("metrics"), name


@pytest.mark.slow
def test_images_travel_with_the_data_set(run: tuple[Pods, Any, str]) -> None:
    dataset = finished(run[0])["prepare_data"].artifacts["dataset"]
    assert Dataset(dataset).info().root is None
    assert sorted(path.name for path in dataset.glob("*.tar")) == [
        "calibration-00000.tar",
        "test-00000.tar",
        "train-00000.tar",
        "validation-00000.tar",
    ]


@pytest.mark.slow
def test_no_artifact_points_into_a_pod(run: tuple[Pods, Any, str]) -> None:
    pods, _, _ = run
    inside = str(pods.folder / "pods").encode()
    found = []
    for path in (pods.folder / "store").rglob("*"):
        # The manifest of an engine says which file it was built from; its digest is what counts.
        if path.name.endswith(".engine.json"):
            continue
        if path.is_file() and inside in path.read_bytes():
            found.append(str(path.relative_to(pods.folder)))
    assert found == []


@pytest.mark.slow
def test_kubeflow_gets_the_confusion_matrix_and_the_page(run: tuple[Pods, Any, str]) -> None:
    steps = finished(run[0])
    measured = Evaluation(steps["evaluate"].artifacts["evaluation"]).measurements()
    shown = steps["evaluate"].metadata("confusion")["confusionMatrix"]
    assert [row["row"] for row in shown["rows"]] == list(
        map(list, measured.confusion["qat_engine"])
    )
    assert [each["displayName"] for each in shown["annotationSpecs"]] == list(map(str, range(10)))
    promoted = steps["promote"].artifacts
    assert (
        promoted["report"].read_text() == Promotion(promoted["promotion"]).report_file.read_text()
    )


@pytest.mark.slow
def test_all_pods_share_one_mlflow_run(run: tuple[Pods, Any, str]) -> None:
    _, client, experiment = run
    runs = client.search_runs([experiment])
    parents = [each for each in runs if "mlflow.parentRunId" not in each.data.tags]
    assert [each.info.run_name for each in parents] == ["resnet_digits on digits"]
    (parent,) = parents
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["qat_engine/accuracy"] > 0
    children = [each for each in runs if each is not parent]
    assert sorted(each.info.run_name for each in children) == sorted(STEP_ARTIFACTS)
    assert {each.info.status for each in children} == {"FINISHED"}
    assert {each.data.tags["mlflow.parentRunId"] for each in children} == {parent.info.run_id}


@pytest.mark.slow
def test_a_run_that_failed_is_closed_as_failed(run: tuple[Pods, Any, str]) -> None:
    pods, client, experiment = run
    from qatline.components.tracking.pipeline_run import find_or_create_parent

    parent = find_or_create_parent(client, experiment, "kfp-2")
    failed = Pods(
        spec=pods.spec,
        folder=pods.folder / "failed",
        environment={**pods.environment, "QATLINE_PIPELINE_RUN_ID": "kfp-2"},
    )
    failed.end("FAILED", "no nodes")
    closed = client.get_run(parent)
    assert closed.info.status == "FAILED"
    assert closed.data.tags["mlflow.note.content"] == "FAILED: no nodes"


@pytest.mark.slow
def test_metrics_are_numbers_alone(run: tuple[Pods, Any, str]) -> None:
    for name, done in finished(run[0]).items():
        assert all(isinstance(value, int | float) for value in done.metadata("metrics").values()), (
            name,
            json.dumps(done.metadata("metrics")),
        )


def test_first_pod_finds_nothing_new(tmp_path: Path) -> None:
    overrides = ["tracking.uri=http://mlflow.example", "registry.name=a", "retrain.only_new=true"]
    config = load_config(overrides=overrides)
    spec, _ = yaml.safe_load_all(pipeline_ir(config))
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    experiment = ensure_store(uri, "qatline", (tmp_path / "artifacts").as_uri())
    client = open_client(uri)
    news = []
    for run_id in ("kfp-1", "kfp-2"):
        environment = {"MLFLOW_TRACKING_URI": uri, "QATLINE_PIPELINE_RUN_ID": run_id}
        pods = Pods(spec=spec, folder=tmp_path / run_id, environment=environment)
        parameters = config.pipeline_parameters()
        done = pods.start("check", "comp-check-new-component", parameters, {})
        news.append(done.output["parameterValues"]["Output"])
        (parent,) = client.search_runs([experiment], f"tags.`qatline.pipeline_run` = '{run_id}'")
        if "qatline.verdict" not in parent.data.tags:
            client.set_tag(parent.info.run_id, "qatline.verdict", "promote")
        client.set_terminated(parent.info.run_id)
    assert news == [True, False]
    assert parent.data.tags["qatline.verdict"] == "nothing new"
