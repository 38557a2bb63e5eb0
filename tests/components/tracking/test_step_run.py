"""Runs of steps: modes and failures, in MLflow on a SQLite store, and once through its server."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow_server import MlflowServer, free_port
from recording_run import INFO, RecordingRun

from qat_lib.errors import ConfigError, DataError, TrackingError
from qatline.components.tracking import step_run as step_run_module
from qatline.components.tracking.mlflow_run import (
    Artifact,
    Curves,
    DatasetInput,
    Metrics,
    OnnxModel,
    Params,
    Tags,
)
from qatline.components.tracking.step_run import open_run, step_run
from qatline.components.tracking.store import ensure_store
from qatline.components.tracking.tracker import StepTimes

# SQLAlchemy 2.1 about a loader that MLflow 3.17 uses, and MLflow about its own type hints.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> RecordingRun:
    recorded = RecordingRun()
    monkeypatch.setattr(step_run_module, "open_run", lambda step: (recorded, None))
    return recorded


def test_off_tracks_nothing(run: RecordingRun, progress: Any) -> None:
    with step_run("evaluate", warn=progress.warn) as tracker:
        tracker.record(Tags({}))
    assert (run.entries, run.closed) == ([], None)


@pytest.mark.parametrize("mode", ["optional", "required"])
def test_launcher_records_the_step_instead(
    run: RecordingRun, monkeypatch: pytest.MonkeyPatch, progress: Any, mode: str
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", mode)
    monkeypatch.setenv("QATLINE_LAUNCHER_PID", "1")
    with step_run("evaluate", warn=progress.warn) as tracker:
        tracker.record(Tags({}))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    if mode == "required":  # it would not be recorded
        with pytest.raises(TrackingError, match="can't be reached"):
            step_run("evaluate", warn=progress.warn).__enter__()
    else:
        with step_run("evaluate", warn=progress.warn):
            pass
    assert (run.entries, run.closed, progress.warnings) == ([], None, [])


@pytest.mark.parametrize("mode", ["optional", "required"])
def test_the_run_ends_as_the_step_ends(
    run: RecordingRun, monkeypatch: pytest.MonkeyPatch, progress: Any, mode: str
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", mode)
    with step_run("evaluate", warn=progress.warn):
        pass
    assert run.closed == "FINISHED"
    with pytest.raises(DataError), step_run("evaluate", warn=progress.warn):
        raise DataError("x")
    assert run.closed == "FAILED"
    with pytest.raises(KeyboardInterrupt), step_run("evaluate", warn=progress.warn):
        raise KeyboardInterrupt
    assert run.closed == "FAILED"


def test_required_tracking_that_fails_fails_the_step(
    run: RecordingRun, monkeypatch: pytest.MonkeyPatch, progress: Any
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", "required")
    run.fail = True
    with (
        pytest.raises(TrackingError, match="went away"),
        step_run("evaluate", warn=progress.warn) as tracker,
    ):
        tracker.record(Tags({}))
    with (
        pytest.raises(TrackingError, match="can't be closed"),
        step_run("evaluate", warn=progress.warn),
    ):
        pass


def test_optional_tracking_that_fails_is_one_warning(
    run: RecordingRun, monkeypatch: pytest.MonkeyPatch, progress: Any
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", "optional")
    run.fail = True
    with step_run("evaluate", warn=progress.warn) as tracker:
        for _ in range(2):
            tracker.record(Tags({}))
    assert len(run.entries) == 1
    assert progress.warnings == [
        "tracking stops for this step: the server went away",
        "the run can't be closed",
    ]


@pytest.mark.parametrize("mode", ["optional", "required"])
def test_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch, progress: Any, mode: str) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", mode)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    if mode == "required":
        with pytest.raises(
            TrackingError, match=r"127.0.0.1:\d+ can't be reached.*tracking\.required=false"
        ):
            step_run("evaluate", warn=progress.warn).__enter__()
        return
    with step_run("evaluate", warn=progress.warn) as tracker:
        tracker.record(Tags({}))
    assert len(progress.warnings) == 1


def test_close_does_not_hide_body_errors(
    run: RecordingRun, monkeypatch: pytest.MonkeyPatch, progress: Any
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", "required")
    run.fail = True
    with pytest.raises(DataError), step_run("evaluate", warn=progress.warn):
        raise DataError("the better message")
    assert progress.warnings == ["the run can't be closed"]


@pytest.mark.parametrize(
    "variable", ["MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL_S3", "MLFLOW_S3_ENDPOINT_URL"]
)
@pytest.mark.parametrize("mode", ["optional", "required"])
def test_step_run_refuses_credentials_in_an_address(
    monkeypatch: pytest.MonkeyPatch, progress: Any, mode: str, variable: str
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", mode)
    monkeypatch.setenv(variable, "http://me:planted@127.0.0.1:1")
    with pytest.raises(ConfigError, match="expected an address without credentials") as caught:
        step_run("evaluate", warn=progress.warn).__enter__()
    assert "planted" not in str(caught.value)


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]
) -> tuple[str, str]:
    """A SQLite store and the id of an experiment in it."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = new_store(folder)
    return uri, ensure_store(uri, "tests", (folder / "artifacts").as_uri())


@pytest.fixture
def tracked_here(store: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Point the environment at the store; return a client."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", store[1])
    from mlflow import MlflowClient

    return MlflowClient(store[0])


def newest(client: Any, experiment: str) -> Any:
    return client.search_runs([experiment], order_by=["attributes.start_time DESC"], max_results=1)[
        0
    ]


def write_model(path: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper

    shape = ["batch", 8, 8, 1]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["images"], ["logits"])],
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_everything_of_a_step_is_found_again(
    store: tuple[str, str], tracked_here: Any, progress: Any, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1}')
    with step_run("export_onnx", warn=progress.warn) as tracker:
        for entry in (
            Params({"qat.epochs": 3, "data.path": "s3://me:pw@host/x"}),
            Params({"qat.epochs": 4, "late": 1}),
            Metrics({"accuracy": 0.9}),
            Curves([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]),
            Artifact(plan),
            Artifact(plan, "deep/er"),
            OnnxModel(write_model(tmp_path / "qat.onnx")),
            DatasetInput(INFO),
            Tags({"target": "cpu"}),
        ):
            tracker.record(entry)
        opened = os.environ["MLFLOW_RUN_ID"]
    run = newest(tracked_here, store[1])
    assert run.info.run_id == opened
    assert "MLFLOW_RUN_ID" not in os.environ
    assert (run.info.run_name, run.info.status) == ("export_onnx", "FINISHED")
    assert run.data.params == {"qat.epochs": "3", "data.path": "s3://***@host/x", "late": "1"}
    assert run.data.metrics["accuracy"] == 0.9
    points = tracked_here.get_metric_history(run.info.run_id, "epoch/loss")
    assert [(point.step, point.value) for point in points] == [(1, 0.5), (2, 0.25)]
    assert {file.path for file in tracked_here.list_artifacts(run.info.run_id)} == {
        "plan.json",
        "deep",
    }
    assert (run.data.tags["qatline.step"], run.data.tags["target"]) == ("export_onnx", "cpu")
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.digest == "f" * 36
    assert run.data.tags["data.fingerprint"] == "f" * 64
    assert "u:p" not in json.dumps([dataset.dataset.source, run.data.tags])
    (model,) = tracked_here.search_logged_models([store[1]])
    assert (model.name, model.source_run_id, model.status) == ("qat", run.info.run_id, "READY")
    assert model.params == run.data.params
    from mlflow.models import get_model_info

    signature = get_model_info(f"models:/{model.model_id}").signature
    assert [(item.name, item.shape, item.type.name) for item in signature.inputs.inputs] == [
        ("images", (-1, 8, 8, 1), "float32")
    ]
    assert "tensorflow" not in sys.modules or "keras" in sys.modules


def test_a_child_of_the_run_of_the_pipeline(
    store: tuple[str, str], tracked_here: Any, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tracked_here.create_run(store[1]).info.run_id
    monkeypatch.setenv("QATLINE_PARENT_RUN_ID", parent)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID")
    with step_run("evaluate", warn=progress.warn):
        pass
    (child,) = tracked_here.search_runs([store[1]], f"tags.`mlflow.parentRunId` = '{parent}'")
    assert (child.info.run_name, child.info.status) == ("evaluate", "FINISHED")


def test_kubeflow_run_is_resumed_despite_parent(
    store: tuple[str, str], tracked_here: Any, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, made = (tracked_here.create_run(store[1]).info.run_id for _ in range(2))
    tracked_here.log_param(made, "qat.epochs", '"3"')
    monkeypatch.setenv("QATLINE_PARENT_RUN_ID", parent)
    monkeypatch.setenv("MLFLOW_RUN_ID", made)
    with step_run("evaluate", warn=progress.warn) as tracker:
        tracker.record(Params({"qat.epochs": 3, "qat.rate": 1}))
        tracker.record(Metrics({"accuracy": 1.0}))
    assert os.environ["MLFLOW_RUN_ID"] == made
    run = tracked_here.get_run(made)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"accuracy": 1.0})
    assert run.data.params == {"qat.epochs": '"3"', "qat.rate": "1"}
    assert tracked_here.search_runs([store[1]], f"tags.`mlflow.parentRunId` = '{parent}'") == []


def test_step_that_ran_earlier_keeps_its_times(
    store: tuple[str, str], tracked_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tracked_here.create_run(store[1]).info.run_id
    monkeypatch.setenv("QATLINE_PARENT_RUN_ID", parent)
    times = StepTimes(started=1_700_000_000_000, ended=1_700_000_005_000)
    own, pipeline = open_run("evaluate", times)
    assert pipeline is not None
    own.record(Metrics({"accuracy": 0.5}))
    pipeline.record(Curves([{"epoch": 1, "loss": 0.5}], "evaluate"))
    own.end("FAILED")
    (run,) = tracked_here.search_runs([store[1]], f"tags.`mlflow.parentRunId` = '{parent}'")
    assert (run.info.start_time, run.info.end_time) == (times.started, times.ended)
    assert (run.info.run_name, run.data.tags["qatline.step"]) == ("evaluate", "evaluate")
    assert run.info.status == "FAILED"
    for run_id, name in ((run.info.run_id, "accuracy"), (parent, "evaluate/loss")):
        points = tracked_here.get_metric_history(run_id, name)
        assert [point.timestamp for point in points] == [times.ended]


def test_what_mlflow_refuses_is_a_tracking_error(
    tracked_here: Any, progress: Any, tmp_path: Path
) -> None:
    with step_run("evaluate", warn=progress.warn) as tracker:
        with pytest.raises(TrackingError, match="the metrics can't be recorded"):
            tracker.record(Metrics({"no (parentheses)": 1.0}))
        with pytest.raises(TrackingError, match=r"gone\.json can't be recorded"):
            tracker.record(Artifact(tmp_path / "gone.json"))
        (tmp_path / "broken.onnx").write_bytes(b"\x00")
        with pytest.raises(TrackingError, match=r"the ONNX model broken\.onnx can't be recorded"):
            tracker.record(OnnxModel(tmp_path / "broken.onnx"))


def test_an_unknown_parent_is_a_tracking_error(
    tracked_here: Any, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with pytest.raises(TrackingError, match="the tracking run can't be opened"):
        step_run("evaluate", warn=progress.warn).__enter__()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real ``mlflow server`` that stores artifacts for its clients."""
    started = MlflowServer(tmp_path_factory.mktemp("server"))
    try:
        started.start()
        yield started.uri
    finally:
        started.kill(signal.SIGTERM)


@pytest.mark.matrix
def test_through_a_server(
    server: str, monkeypatch: pytest.MonkeyPatch, progress: Any, tmp_path: Path
) -> None:
    experiment = ensure_store(server, "remote")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    with step_run("export_onnx", warn=progress.warn) as tracker:
        tracker.record(Params({"qat.epochs": 3}))
        tracker.record(Metrics({"accuracy": 0.9}))
        tracker.record(Artifact(plan))
        tracker.record(OnnxModel(write_model(tmp_path / "qat.onnx")))
    from mlflow import MlflowClient

    client = MlflowClient(server)
    run = newest(client, experiment)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"accuracy": 0.9})
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["plan.json"]
    assert len(client.search_logged_models([experiment])) == 1
