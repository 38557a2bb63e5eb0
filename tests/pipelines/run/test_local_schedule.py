"""Crontab lines and systemd units, checked by systemd itself where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from qat_lib.errors import ConfigError
from qatline.pipelines.run.local_schedule import LocalSchedule, on_calendar


def schedule(cron: str = "0 2 * * *", *words: str) -> LocalSchedule:
    folder = Path("/data/my project")
    command = ["/opt/qatline", "run", *words]
    return LocalSchedule(cron=cron, command=command, folder=folder, log=folder / "out.log")


def test_crontab_quotes_for_the_shell_and_cron() -> None:
    line = schedule("0  2 * * *", "--set", "tracking.experiment=50% off").crontab()
    assert line == (
        "0 2 * * * cd '/data/my project' && mkdir -p '/data/my project' && /opt/qatline run --set "
        r"'tracking.experiment=50\% off' >> '/data/my project/out.log' 2>&1"
    )


def test_crontab_line_runs_before_the_first_run(tmp_path: Path) -> None:
    log = tmp_path / "not there yet" / "schedule.log"
    planned = LocalSchedule(cron="0 2 * * *", command=["echo", "ran"], folder=tmp_path, log=log)
    line = planned.crontab().removeprefix("0 2 * * * ")
    subprocess.run(["/bin/sh", "-c", line], check=True)
    assert log.read_text() == "ran\n"


def test_service_quotes_for_systemd() -> None:
    text = schedule("0 2 * * *", "--set", 'data.path=/a b/100%"$HOME"').service()
    assert r'ExecStart=/opt/qatline run --set "data.path=/a b/100%%\"$$HOME\""' in text
    assert "WorkingDirectory=/data/my project\n" in text
    assert "SuccessExitStatus=3" in text


@pytest.mark.parametrize(
    ("cron", "calendar"),
    [
        ("0 2 * * *", "*-*-* 02:00:00"),
        ("*/15 * * * *", "*-*-* *:00/15:00"),
        ("5,35 8-18 * * 1-5", "Mon..Fri *-*-* 08..18:05,35:00"),
        ("0 0 1,15 * *", "*-*-01,15 00:00:00"),
        ("0 0 */2 6 *", "*-06-01/2 00:00:00"),
        ("0 0 * * 0,7", "Sun,Sun *-*-* 00:00:00"),
        ("0 4-20/4 * * *", "*-*-* 04..20/4:00:00"),
    ],
)
def test_on_calendar_says_the_same_as_cron(cron: str, calendar: str) -> None:
    assert on_calendar(cron) == calendar
    if (analyze := shutil.which("systemd-analyze")) is not None:
        subprocess.run([analyze, "calendar", calendar], check=True, capture_output=True)


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "0 2 * *",
        "0 0 2 * * *",
        "60 2 * * *",
        "0 24 * * *",
        "0 0 0 * *",
        "0 0 * 13 *",
        "0 0 * * 8",
        "0 0 * * mon",
        "*-5 0 * * *",
        "0 0 * * */2",
        "*/0 0 * * *",
        "0 0 1 * 1",
    ],
)
def test_on_calendar_refuses_what_is_no_schedule(cron: str) -> None:
    with pytest.raises(ConfigError, match="xpected"):
        on_calendar(cron)


def test_timer_catches_up_after_a_night_without_power() -> None:
    text = schedule().timer()
    assert "OnCalendar=*-*-* 02:00:00\nPersistent=true\n" in text
