"""Waiting for a run: changes of steps, ends, outages."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from qat_lib.errors import ConfigError
from qatline.pipelines.cluster.connection import ClusterError
from qatline.pipelines.cluster.progress import (
    ClusterRun,
    ClusterRunError,
    describe_run,
    follow_run,
    run_id_of,
)


def run(state: str, **values: Any) -> ClusterRun:
    return ClusterRun(run_id="r", name="nightly", state=state, **values)


def answers(*found: ClusterRun | ClusterError) -> Callable[[], ClusterRun]:
    waiting = iter(found)

    def read() -> ClusterRun:
        answer = next(waiting)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    return read


def follow(found: Iterable[ClusterRun | ClusterError], **values: Any) -> list[str]:
    lines: list[str] = []
    follow_run(answers(*found), lines.append, sleep=lambda seconds: None, **values)
    return lines


def test_follow_run_tells_each_change_once() -> None:
    lines = follow(
        [
            run("pending"),
            run("running", steps={"prepare_data": "running"}),
            run("running", steps={"prepare_data": "running"}),
            run("running", steps={"prepare_data": "succeeded", "train_baseline": "running"}),
            run("succeeded", steps={"prepare_data": "succeeded", "train_baseline": "succeeded"}),
        ]
    )
    assert lines == [
        "run  pending",
        "prepare_data  running",
        "run  running",
        "prepare_data  succeeded",
        "train_baseline  running",
        "train_baseline  succeeded",
        "run  succeeded",
    ]


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (
            run("failed", errors={"evaluate": "OOMKilled"}),
            "The run nightly failed in step evaluate: OOMKilled",
        ),
        (run("failed", steps={"evaluate": "failed"}), "failed in step evaluate: the server gives"),
        (run("failed", error="quota"), "The run nightly failed: quota."),
        (run("canceled"), "The run nightly was canceled."),
    ],
)
def test_follow_run_raises_at_a_bad_end(end: ClusterRun, message: str) -> None:
    with pytest.raises(ClusterRunError, match=message) as caught:
        follow([run("running"), end])
    assert caught.value.exit_code == 1


def test_follow_run_ends_late_runs_with_code_124() -> None:
    ticks = iter(range(100))
    with pytest.raises(ClusterRunError, match=r"within 3 s; it is running\. It goes on") as caught:
        follow([run("running")] * 9, timeout=3, clock=lambda: next(ticks))
    assert caught.value.exit_code == 124


def test_follow_run_survives_short_outages() -> None:
    away = ClusterError("went away")
    assert follow([run("running"), *[away] * 5, run("succeeded")])[-1] == "run  succeeded"
    with pytest.raises(ClusterError, match="went away"):
        follow([run("running"), *[away] * 6, run("succeeded")])


def test_follow_run_tells_an_unknown_run_at_once() -> None:
    with pytest.raises(ClusterError, match="no such run"):
        follow([ClusterError("no such run"), run("succeeded")])


def task(name: str, state: str | None, created: int = 0, error: str = "") -> Any:
    reason = SimpleNamespace(message=error) if error else None
    return SimpleNamespace(display_name=name, state=state, create_time=created, error=reason)


def test_describe_run_takes_the_latest_attempt_of_a_step() -> None:
    tasks = [
        task("evaluate-component", "SUCCEEDED", created=2),
        task("evaluate-component", "FAILED", created=1, error="OOMKilled"),
        task("prepare-data-component", None),
        task("executor", "FAILED", error="x"),
        task("", "RUNNING"),
    ]
    found = describe_run(
        SimpleNamespace(
            run_id="r",
            display_name="nightly",
            state="RUNNING",
            error=None,
            run_details=SimpleNamespace(task_details=tasks),
        )
    )
    assert dict(found.steps) == {"prepare_data": "pending", "evaluate": "succeeded"}
    assert list(found.steps) == ["prepare_data", "evaluate"]
    assert not found.errors
    assert not found.ended


def test_describe_run_takes_a_run_without_details() -> None:
    found = describe_run(
        SimpleNamespace(run_id="r", display_name=None, state=None, error=None, run_details=None)
    )
    assert (found.name, found.state, found.steps) == ("r", "pending", {})


def test_run_id_is_found_in_an_address() -> None:
    assert run_id_of("http://kfp.example/#/runs/details/ab-12") == "ab-12"
    assert run_id_of("ab-12") == "ab-12"
    for wrong in ("", "/", "a b", "a?b=c"):
        with pytest.raises(ConfigError, match="Expected the id of a run"):
            run_id_of(wrong)
