"""``qatline schedule``: retraining on this machine, by cron or systemd."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from qat_lib.errors import ConfigError
from qatline.pipelines.cli.command import DEFAULT_CONFIG, ConfigChoice
from qatline.pipelines.cli.options import RunsDirOption


def schedule_here(
    cron: Annotated[str, typer.Option(help="Five fields, minute first.")] = "0 2 * * *",
    local: Annotated[
        bool, typer.Option("--local", help="On this machine; print crontab line and timer.")
    ] = False,
    choice: ConfigChoice = DEFAULT_CONFIG,
    runs_dir: RunsDirOption = None,
) -> None:
    """Print a crontab line and a systemd timer that retrain on this machine.

    A run that finds the same data, code and settings ends early.
    """
    from qatline.pipelines.run.local_schedule import LocalSchedule

    if not local:
        raise ConfigError(
            "Expected --local, which schedules on this machine. On a cluster: "
            "qatline cluster schedule."
        )
    choice = choice.overridden("retrain.only_new=true")
    output = Path(choice.load(runs_dir).output)
    command = [_program(), "run", "--quiet", *choice.arguments(), "--runs-dir", str(output)]
    planned = LocalSchedule(
        cron=cron, command=command, folder=Path.cwd(), log=output / "schedule.log"
    )
    timer = planned.timer()
    typer.echo(f"# crontab -e\n{planned.crontab()}\n")
    typer.echo(f"# ~/.config/systemd/user/qatline.service\n{planned.service()}")
    typer.echo(f"# ~/.config/systemd/user/qatline.timer\n{timer}")
    typer.echo("# systemctl --user enable --now qatline.timer")


def _program() -> str:
    """Return the path of the command that runs now: cron's PATH is short."""
    started = Path(sys.argv[0])
    if started.name == "qatline" and started.exists():
        return str(started.absolute())
    return shutil.which("qatline") or "qatline"
