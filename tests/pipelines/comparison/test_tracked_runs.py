"""What MLflow holds of a run, and what differs between runs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from compared_runs import make_plan, three_runs

from qat_lib.errors import TrackingError
from qatline.components.tracking.mlflow_run import Artifact, Curves, Metrics, MlflowRun, Params
from qatline.components.tracking.store import ensure_store, open_client
from qatline.pipelines.comparison.tracked_runs import (
    differing_params,
    plan_differences,
    read_tracked_run,
)

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")


def test_read_tracked_run_reads_figures_curves_and_plan(
    tmp_path: Path, new_store: Callable[[Path], str]
) -> None:
    uri = new_store(tmp_path)
    experiment = ensure_store(uri, "e", (tmp_path / "artifacts").as_uri())
    client = open_client(uri)
    made = client.create_run(experiment, 1000, {"qatline.verdict": "reject"}, "nightly")
    run = MlflowRun(client, made.info.run_id, at=3500)
    run.record(Params({"qat.epochs": 3}))
    metrics = {"qat_engine/accuracy": 0.5, "fp32/accuracy": 0.75, "promote/x": 1.0}
    run.record(Metrics(metrics))
    epochs = [{"epoch": 2, "val_loss": 0.25}, {"epoch": 1, "val_loss": 0.5, "lr": 0.1}]
    run.record(Curves(epochs, "finetune_qat"))
    make_plan().save(tmp_path / "plan.json")
    run.record(Artifact(tmp_path / "plan.json"))
    run.end("FINISHED")

    read = read_tracked_run(client, run.run_id, details=True)
    assert (read.name, read.status, read.verdict) == ("nightly", "FINISHED", "reject")
    assert (read.started, read.seconds) == ("1970-01-01T00:00:01+00:00", 2.5)
    assert read.params == {"qat.epochs": "3"}
    assert read.row("qat_engine").value == 0.5
    assert read.row("fp32").value == 0.75
    assert read.curves == {"finetune_qat/val_loss": [(1, 0.5), (2, 0.25)]}
    assert read.plan == make_plan()
    said = read_tracked_run(client, run.run_id, name="mine").to_dict()
    assert (said["name"], said["metric"], said["value"]) == ("mine", "accuracy", 0.5)


def test_plan_of_another_version_is_left_out(
    tmp_path: Path, new_store: Callable[[Path], str]
) -> None:
    uri = new_store(tmp_path)
    client, experiment = None, ensure_store(uri, "e", (tmp_path / "artifacts").as_uri())
    client = open_client(uri)
    run_id = client.create_run(experiment).info.run_id
    (tmp_path / "plan.json").write_text('{"version": 999}')
    client.log_artifact(run_id, str(tmp_path / "plan.json"))
    assert read_tracked_run(client, run_id, details=True).plan is None
    with pytest.raises(TrackingError, match="can't be read from sqlite"):
        read_tracked_run(client, "0" * 32)


def test_differing_params_leave_places_out() -> None:
    assert differing_params(three_runs()) == ["qat.epochs"]
    assert differing_params(three_runs()[:1]) == []


def test_plan_differences_are_against_the_first_run() -> None:
    found = plan_differences(three_runs())
    assert found["middle"] == []
    assert found["<high>"] == ["~ q: num_bits: 8 -> 4"]
    assert plan_differences([]) == {}
