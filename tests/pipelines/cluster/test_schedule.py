"""Schedules as data: what is taken, and how a server's are read."""

from types import SimpleNamespace
from typing import Any

import pytest

from qat_lib.errors import ConfigError
from qatline.pipelines.cluster.schedule import Schedule, is_same, schedule_of


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cron": "0 2 * * *"}, "six fields"),
        ({"cron": "0 0 2 * * *", "max_concurrency": 11}, "max_concurrency from 1 to 10"),
        ({"every": 60, "max_concurrency": 0}, "max_concurrency from 1 to 10"),
        ({"every": -60}, "at least 1 s, received -60 s"),
        ({}, "cron expression or an interval.*received neither"),
        ({"cron": "0 0 2 * * *", "every": 60}, "received both"),
    ],
)
def test_invalid_schedule_is_refused_before_sending(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Schedule(name="x", **values)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(90, "every 90s"), (1800, "every 30m"), (21_600, "every 6h"), (172_800, "every 2d")],
)
def test_when_names_the_largest_unit(seconds: int, text: str) -> None:
    assert Schedule(name="x", every=seconds).when == text
    assert Schedule(name="x", cron="0 0 2 * * *").when == "cron 0 0 2 * * *"


def job(**values: Any) -> Any:
    trigger = SimpleNamespace(cron_schedule=None, periodic_schedule=None)
    base = {
        "display_name": "x",
        "trigger": trigger,
        "max_concurrency": "2",
        "status": "ENABLED",
        "experiment_id": "e",
        "service_account": None,
        "pipeline_version_reference": SimpleNamespace(pipeline_version_id="v"),
    }
    return SimpleNamespace(**base | values)


def test_schedule_of_reads_intervals_as_text_and_number() -> None:
    trigger = SimpleNamespace(
        cron_schedule=None, periodic_schedule=SimpleNamespace(interval_second="60")
    )
    assert schedule_of(job(trigger=trigger)) == Schedule(name="x", every=60, max_concurrency=2)
    assert schedule_of(job()) is None


def test_is_same_compares_everything() -> None:
    trigger = SimpleNamespace(
        cron_schedule=None, periodic_schedule=SimpleNamespace(interval_second=60)
    )
    wanted = Schedule(name="x", every=60, max_concurrency=2)
    same = {"version": "v", "experiment": "e", "account": ""}
    assert is_same(job(trigger=trigger), wanted, **same)
    for name in same:
        assert not is_same(job(trigger=trigger), wanted, **same | {name: "other"})
    for change in ({"status": "DISABLED"}, {"status": None}, {"max_concurrency": "3"}):
        assert not is_same(job(trigger=trigger, **change), wanted, **same)
