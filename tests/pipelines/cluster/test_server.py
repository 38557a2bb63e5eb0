"""Requests to a fake Kubeflow Pipelines server.

The fake checks them with the installed client's models.
"""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fake_kfp_server import FakeKfpServer, check_body

from qat_lib.errors import ConfigError
from qatline.pipelines.cluster.progress import ClusterRunError
from qatline.pipelines.cluster.server import Cluster, ClusterError, Schedule, connect
from qatline.pipelines.config.run_config import load_config

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NIGHTLY = Schedule(name="nightly", cron="0 0 2 * * *")


@pytest.fixture
def server() -> Iterator[FakeKfpServer]:
    fake = FakeKfpServer()
    yield fake
    fake.close()


@pytest.fixture
def cluster(server: FakeKfpServer) -> Cluster:
    return connect(server.url)


def test_fake_server_refuses_unknown_fields() -> None:
    check_body(
        {"display_name": "a", "trigger": {"cron_schedule": {"cron": "x"}}}, "V2beta1RecurringRun"
    )
    with pytest.raises(ValueError, match=r"unknown field .trigger.cron_schedule.crom"):
        check_body({"trigger": {"cron_schedule": {"crom": "x"}}}, "V2beta1RecurringRun")


def test_submit_uploads_equal_pipeline_once(server: FakeKfpServer, cluster: Cluster) -> None:
    first = cluster.submit(load_config(), experiment="e", name="one")
    second = cluster.submit(load_config(), experiment="e", name="two")
    assert first.url == f"{server.url}/#/runs/details/{first.run_id}"
    assert [run["display_name"] for run in server.runs.values()] == ["one", "two"]
    references = [run["pipeline_version_reference"] for run in server.runs.values()]
    assert references[0] == references[1]
    assert len(server.pipelines) == 1
    assert server.calls.count("upload_pipeline_version") == 1
    assert first.run_id != second.run_id
    cluster.submit(load_config(overrides=["qat.epochs=1"]), experiment="e", name="three")
    assert server.calls.count("upload_pipeline_version") == 2


def test_a_schedule_is_applied_by_name(server: FakeKfpServer, cluster: Cluster) -> None:
    config = load_config()
    assert (
        cluster.apply_schedule(config, Schedule(name="other", cron="0 0 3 * * *"), experiment="e")
        == "created"
    )
    assert cluster.apply_schedule(config, NIGHTLY, experiment="e") == "created"
    assert cluster.apply_schedule(config, NIGHTLY, experiment="e") == "unchanged"
    later = Schedule(name="nightly", cron="0 0 4 * * *", max_concurrency=2)
    assert cluster.apply_schedule(config, later, experiment="e") == "replaced"
    for override in ("seed=7", "cluster.memory=4Gi", "cluster.node_selector={disk: ssd}"):
        other_config = load_config(overrides=[override])
        assert cluster.apply_schedule(other_config, later, experiment="e") == "replaced"
        assert cluster.apply_schedule(other_config, later, experiment="e") == "unchanged"
    assert {schedule.name: schedule for schedule in cluster.schedules()} == {
        "nightly": later,
        "other": Schedule(name="other", cron="0 0 3 * * *"),
    }
    job = next(job for job in server.recurring.values() if job["display_name"] == "nightly")
    assert job["no_catchup"] is True


def test_disabled_schedule_is_enabled_again(server: FakeKfpServer, cluster: Cluster) -> None:
    cluster.apply_schedule(load_config(), NIGHTLY, experiment="e")
    next(iter(server.recurring.values()))["status"] = "DISABLED"
    assert cluster.apply_schedule(load_config(), NIGHTLY, experiment="e") == "replaced"
    assert [job["status"] for job in server.recurring.values()] == ["ENABLED"]


def test_paused_schedule_is_resumed_by_name(server: FakeKfpServer, cluster: Cluster) -> None:
    cluster.apply_schedule(load_config(), NIGHTLY, experiment="e")
    cluster.pause_schedule("nightly")
    assert cluster.schedules() == [replace(NIGHTLY, paused=True)]
    cluster.resume_schedule("nightly")
    assert cluster.schedules() == [NIGHTLY]
    for change in (cluster.pause_schedule, cluster.resume_schedule, cluster.show_schedule):
        with pytest.raises(ConfigError, match=r"Expected a schedule .*nightly.*received 'daily'"):
            change("daily")


def test_schedule_may_be_created_paused(server: FakeKfpServer, cluster: Cluster) -> None:
    paused = replace(NIGHTLY, paused=True)
    assert cluster.apply_schedule(load_config(), paused, experiment="e") == "created"
    assert cluster.apply_schedule(load_config(), paused, experiment="e") == "unchanged"
    assert cluster.apply_schedule(load_config(), NIGHTLY, experiment="e") == "replaced"


def test_interval_replaces_cron(server: FakeKfpServer, cluster: Cluster) -> None:
    cluster.apply_schedule(load_config(), NIGHTLY, experiment="e")
    often = Schedule(name="nightly", every=21_600)
    assert cluster.apply_schedule(load_config(), often, experiment="e") == "replaced"
    assert cluster.apply_schedule(load_config(), often, experiment="e") == "unchanged"
    (job,) = server.recurring.values()
    assert job["trigger"] == {"periodic_schedule": {"interval_second": 21_600}}
    assert cluster.schedules() == [often]


def test_service_account_is_sent_with_run_and_schedule(
    server: FakeKfpServer, cluster: Cluster
) -> None:
    config = load_config(overrides=["cluster.service_account=runner"])
    cluster.submit(config, experiment="e", name="one")
    cluster.apply_schedule(load_config(), NIGHTLY, experiment="e")
    assert cluster.apply_schedule(config, NIGHTLY, experiment="e") == "replaced"
    assert cluster.apply_schedule(config, NIGHTLY, experiment="e") == "unchanged"
    (run,), (job,) = server.runs.values(), server.recurring.values()
    assert run["service_account"] == job["service_account"] == "runner"


def test_show_schedule_has_its_latest_runs(server: FakeKfpServer, cluster: Cluster) -> None:
    config = load_config(overrides=["cluster.service_account=runner"])
    cluster.apply_schedule(config, NIGHTLY, experiment="nights")
    (job,) = server.recurring.values()
    for day in range(1, 8):
        owner = "another" if day == 7 else job["recurring_run_id"]
        server.runs[f"run-{day}"] = {
            "run_id": f"run-{day}",
            "experiment_id": job["experiment_id"],
            "recurring_run_id": owner,
            "created_at": f"2026-11-0{day}T02:00:00Z",
            "state": "SUCCEEDED",
        }
    found = cluster.show_schedule("nightly")
    assert (found.schedule, found.experiment) == (NIGHTLY, "nights")
    assert found.service_account == "runner"
    assert found.version in server.versions
    assert [run.run_id for run in found.runs] == ["run-6", "run-5", "run-4", "run-3", "run-2"]
    assert found.runs[0].started.startswith("2026-11-06 02:00")
    assert found.runs[0].state == "succeeded"


def test_run_is_read_with_its_steps(server: FakeKfpServer, cluster: Cluster) -> None:
    run_id = cluster.submit(load_config(), experiment="e", name="one").run_id
    server.runs[run_id] |= {
        "state": "FAILED",
        "run_details": {
            "task_details": [
                {"display_name": "root", "state": "FAILED"},
                {"display_name": "prepare-data-component", "state": "SUCCEEDED"},
                {"display_name": "prepare-data-component-driver", "state": "SUCCEEDED"},
                {
                    "display_name": "train-baseline-component",
                    "state": "FAILED",
                    "error": {"message": "OOMKilled"},
                },
            ]
        },
    }
    found = cluster.run(run_id)
    assert found.steps == {"prepare_data": "succeeded", "train_baseline": "failed"}
    lines: list[str] = []
    with pytest.raises(ClusterRunError, match=r"The run one failed in step train_baseline: OOMK"):
        cluster.wait(run_id, lines.append, poll=0)
    assert lines == ["prepare_data  succeeded", "train_baseline  failed", "run  failed"]


def test_unknown_run_is_told(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match=r"refused to show the run nope: Run nope not found"):
        cluster.wait("nope", print, poll=0)


def test_a_schedule_is_deleted_by_name(server: FakeKfpServer, cluster: Cluster) -> None:
    cluster.apply_schedule(load_config(), NIGHTLY, experiment="e")
    with pytest.raises(
        ConfigError, match=r"Expected a schedule of this server \(nightly\), received 'daily'"
    ):
        cluster.delete_schedule("daily")
    cluster.delete_schedule("nightly")
    assert not server.recurring


def test_what_the_server_refuses_is_told(server: FakeKfpServer, cluster: Cluster) -> None:
    server.run_service_create_run = _refuse  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match=r"refused to start the run: quota is used up \(400\)"):
        cluster.submit(load_config(), experiment="e", name="one")


def test_unreachable_server_is_reported_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(ClusterError, match="nothing answers"):
        connect(f"http://127.0.0.1:{port}")


def test_another_service_is_told(server: FakeKfpServer) -> None:
    with pytest.raises(ClusterError, match=r"it answers 404. Check the address"):
        connect(f"{server.url}/elsewhere")


@pytest.mark.skipif(
    "KFP_ENDPOINT" not in os.environ, reason="KFP_ENDPOINT names no Kubeflow Pipelines server"
)
def test_schedule_round_trips_through_real_server() -> None:
    cluster = connect(os.environ["KFP_ENDPOINT"])
    schedule = Schedule(name="qatline-test", cron="0 0 0 1 1 *")
    try:
        assert (
            cluster.apply_schedule(load_config(), schedule, experiment="qatline-test") == "created"
        )
        assert (
            cluster.apply_schedule(load_config(), schedule, experiment="qatline-test")
            == "unchanged"
        )
    finally:
        cluster.delete_schedule("qatline-test")


def _refuse(**_: object) -> dict[str, object]:
    raise ValueError("quota is used up")
