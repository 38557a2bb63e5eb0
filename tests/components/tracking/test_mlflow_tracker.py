"""The real MLflow: on a SQLite store, and once through its server."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow_server import MlflowServer

from qat_lib.errors import DataError, TrackingError
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.tracking.step_run import step_run
from qatline.components.tracking.tracker import StepTimes, ensure_store

# SQLAlchemy 2.1 about a loader that MLflow 3.17 uses, and MLflow about its own type hints.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]

ROOT = Path(__file__).parents[3]

INFO = DatasetInfo(
    kind="npz",
    classes=("a", "b"),
    image_shape=(8, 8, 1),
    dtype="float32",
    splits={"test": 2},
    fingerprint="f" * 64,
    source="http://u:p@host/d.npz",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A SQLite store and the id of an experiment in it."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder}/deep/mlflow.db"
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


def test_ensuring_a_store_again_changes_nothing(store: tuple[str, str]) -> None:
    assert ensure_store(store[0], "tests") == store[1]
    assert ensure_store(store[0], "another") != store[1]


def test_a_deleted_experiment_is_told(store: tuple[str, str], tracked_here: Any) -> None:
    experiment = ensure_store(store[0], "gone")
    tracked_here.delete_experiment(experiment)
    with pytest.raises(
        TrackingError, match=f"'gone' was deleted: restore it with .* -x {experiment}"
    ):
        ensure_store(store[0], "gone")


def test_a_store_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database")
    with pytest.raises(TrackingError, match=r"can't be used.*exists"):
        ensure_store(f"sqlite:///{tmp_path}/file/mlflow.db", "x")
    with pytest.raises(TrackingError, match="file is no SQLite database"):
        ensure_store(f"sqlite:///{tmp_path}/file", "x")
    with pytest.raises(TrackingError, match="can't be used"):
        ensure_store("nonsense://host", "x")


def test_everything_of_a_step_is_found_again(
    store: tuple[str, str], tracked_here: Any, progress: Any, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1}')
    with step_run("export_onnx", warn=progress.warn) as tracker:
        tracker.log_params(
            {"qat.epochs": 3, "data.path": "s3://me:pw@host/x", **{f"p.{i}": i for i in range(150)}}
        )
        tracker.log_params({"qat.epochs": 4, "late": 1})
        tracker.log_metrics({"accuracy": 0.9})
        tracker.log_history([{"epoch": 1, "loss": 0.5, "note": "x"}, {"epoch": 2, "loss": 0.25}])  # type: ignore[dict-item]
        tracker.log_artifact(plan)
        tracker.log_artifact(plan, "deep/er")
        tracker.log_onnx(write_model(tmp_path / "qat.onnx"), "qat")
        tracker.log_dataset(INFO)
        tracker.set_tags({"target": "cpu"})
    run = newest(tracked_here, store[1])
    assert (run.info.run_name, run.info.status) == ("export_onnx", "FINISHED")
    assert run.data.params["qat.epochs"] == "3"
    assert run.data.params["late"] == "1"
    assert run.data.params["data.path"] == "s3://***@host/x"
    assert len(run.data.params) == 153
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
    assert model.source_run_id == run.info.run_id
    from mlflow.models import get_model_info

    signature = get_model_info(f"models:/{model.model_id}").signature
    assert [(item.name, item.shape, item.type.name) for item in signature.inputs.inputs] == [
        ("images", (-1, 8, 8, 1), "float32")
    ]
    assert "tensorflow" not in sys.modules or "keras" in sys.modules


def test_context_tags_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking.context import registry

    from qatline.components.tracking.mlflow_tracker import _context_tags

    tags = {"mlflow.source.git.repoURL": "https://planted@github.com/me/repo", "mlflow.user": "me"}
    monkeypatch.setattr(registry, "resolve_tags", lambda: tags)
    assert _context_tags() == {
        "mlflow.source.git.repoURL": "https://***@github.com/me/repo",
        "mlflow.user": "me",
    }


def test_a_failed_step_is_a_failed_run(
    store: tuple[str, str], tracked_here: Any, progress: Any
) -> None:
    with pytest.raises(DataError), step_run("evaluate", warn=progress.warn):
        raise DataError("x")
    assert newest(tracked_here, store[1]).info.status == "FAILED"


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
        tracker.log_params({"qat.epochs": 3, "qat.rate": 1})
        tracker.log_metrics({"accuracy": 1.0})
    run = tracked_here.get_run(made)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"accuracy": 1.0})
    assert run.data.params == {"qat.epochs": '"3"', "qat.rate": "1"}
    assert tracked_here.search_runs([store[1]], f"tags.`mlflow.parentRunId` = '{parent}'") == []


@pytest.mark.parametrize("error", [None, DataError("x")])
def test_step_that_ran_earlier_keeps_its_times(
    store: tuple[str, str],
    tracked_here: Any,
    progress: Any,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception | None,
) -> None:
    parent = tracked_here.create_run(store[1]).info.run_id
    monkeypatch.setenv("QATLINE_PARENT_RUN_ID", parent)
    times = StepTimes(started=1_700_000_000_000, ended=1_700_000_005_000)
    with (
        contextlib.suppress(DataError),
        step_run("evaluate", warn=progress.warn, times=times) as tracker,
    ):
        tracker.log_metrics({"accuracy": 0.5})
        tracker.pipeline.log_history([{"epoch": 1, "loss": 0.5}], "evaluate")
        if error is not None:
            raise error
    (run,) = tracked_here.search_runs([store[1]], f"tags.`mlflow.parentRunId` = '{parent}'")
    assert (run.info.start_time, run.info.end_time) == (times.started, times.ended)
    assert (run.info.run_name, run.data.tags["qatline.step"]) == ("evaluate", "evaluate")
    assert run.info.status == ("FAILED" if error else "FINISHED")
    for run_id, name in ((run.info.run_id, "accuracy"), (parent, "evaluate/loss")):
        points = tracked_here.get_metric_history(run_id, name)
        assert [point.timestamp for point in points] == [times.ended]


def test_what_mlflow_refuses_is_a_tracking_error(
    tracked_here: Any, progress: Any, tmp_path: Path
) -> None:
    with step_run("evaluate", warn=progress.warn) as tracker:
        with pytest.raises(TrackingError, match="the metrics can't be recorded"):
            tracker.log_metrics({"no (parentheses)": 1.0})
        with pytest.raises(TrackingError, match=r"gone\.json can't be recorded"):
            tracker.log_artifact(tmp_path / "gone.json")
        (tmp_path / "broken.onnx").write_bytes(b"\x00")
        with pytest.raises(TrackingError, match=r"the ONNX model broken\.onnx can't be recorded"):
            tracker.log_onnx(tmp_path / "broken.onnx", "broken")


def test_an_unknown_parent_is_a_tracking_error(
    tracked_here: Any, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with pytest.raises(TrackingError, match="the tracking run can't be opened"):
        step_run("evaluate", warn=progress.warn).__enter__()


def test_two_launchers_may_make_one_database_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from qatline.components.tracking.store import ensure_store; "
        "print(ensure_store(sys.argv[1], 'e'))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, f"sqlite:///{tmp_path}/mlflow.db"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    launchers = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    ends = [(*launcher.communicate(timeout=300), launcher.returncode) for launcher in launchers]
    assert [code for _, _, code in ends] == [0, 0], ends
    assert len({out for out, _, _ in ends}) == 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real ``mlflow server`` that stores artifacts for its clients."""
    started = MlflowServer(tmp_path_factory.mktemp("server"))
    try:
        started.start()
        yield started.uri
    finally:
        started.kill(signal.SIGTERM)


def test_through_a_server(
    server: str, monkeypatch: pytest.MonkeyPatch, progress: Any, tmp_path: Path
) -> None:
    experiment = ensure_store(server, "remote")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    with step_run("export_onnx", warn=progress.warn) as tracker:
        tracker.log_params({"qat.epochs": 3})
        tracker.log_metrics({"accuracy": 0.9})
        tracker.log_artifact(plan)
        tracker.log_onnx(write_model(tmp_path / "qat.onnx"), "qat")
    from mlflow import MlflowClient

    client = MlflowClient(server)
    run = newest(client, experiment)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"accuracy": 0.9})
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["plan.json"]
    assert len(client.search_logged_models([experiment])) == 1
