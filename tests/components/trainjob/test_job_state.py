"""What the conditions of a TrainJob mean."""

from typing import Any

import pytest

from qatline.components.trainjob.job_state import read_job_state


def condition(kind: str, status: str = "True", **told: str) -> dict[str, str]:
    return {"type": kind, "status": status, **told}


@pytest.mark.parametrize(
    ("conditions", "phase"),
    [
        ([], "waiting"),
        ([condition("Suspended")], "waiting"),
        ([condition("Suspended", "False")], "waiting"),
        ([condition("Suspended", "False"), condition("Complete")], "complete"),
        ([condition("Failed")], "failed"),
        ([condition("Complete", "False"), condition("Failed")], "failed"),
    ],
)
def test_read_job_state_says_whether_a_job_has_ended(conditions: list[Any], phase: str) -> None:
    state = read_job_state({"status": {"conditions": conditions}})
    assert state.phase == phase
    assert state.ended is (phase in ("complete", "failed"))


def test_read_job_state_takes_an_object_without_status() -> None:
    assert read_job_state({}).phase == "waiting"


@pytest.mark.parametrize(
    ("jobs", "phase", "text"),
    [
        ({"active": 1}, "running", "running (jobs: 1 active)"),
        ({"ready": 1, "active": 1}, "running", "running (jobs: 1 active, 1 ready)"),
        ({"succeeded": 1}, "running", "running (jobs: 1 succeeded)"),
        ({"active": 0, "suspended": 1}, "waiting", "waiting"),
    ],
)
def test_read_job_state_counts_jobs(jobs: dict[str, int], phase: str, text: str) -> None:
    state = read_job_state({"status": {"jobsStatus": [{"name": "node", **jobs}]}})
    assert state.phase == phase
    assert str(state) == text


def test_read_job_state_keeps_the_reason() -> None:
    failed = condition("Failed", reason="FailedJobs", message="job x failed")
    assert (
        read_job_state({"status": {"conditions": [failed]}}).message == "FailedJobs: job x failed"
    )
