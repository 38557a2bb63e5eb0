"""Requests to a fake Kubeflow Pipelines server.

The fake checks them with the installed client's models.
"""

import os
import socket
from collections.abc import Iterator

import pytest
from fake_kfp_server import FakeKfpServer, check_body

from pipelines.cluster.server import Cluster, ClusterError, Schedule, connect
from pipelines.config.run_config import load_config
from qat_lib.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
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


def test_a_schedule_is_deleted_by_name(server: FakeKfpServer, cluster: Cluster) -> None:
    cluster.apply_schedule(load_config(), NIGHTLY, experiment="e")
    with pytest.raises(
        ConfigError, match=r"Expected a schedule of this server \(nightly\), received 'daily'"
    ):
        cluster.delete_schedule("daily")
    cluster.delete_schedule("nightly")
    assert not server.recurring


@pytest.mark.parametrize(
    ("cron", "concurrency", "message"),
    [("0 2 * * *", 1, "six fields"), ("0 0 2 * * *", 11, "max_concurrency from 1 to 10")],
)
def test_invalid_schedule_is_refused_before_sending(
    cron: str, concurrency: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Schedule(name="x", cron=cron, max_concurrency=concurrency)


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
