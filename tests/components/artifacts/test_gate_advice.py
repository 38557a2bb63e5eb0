"""How a verdict is presented: its order, and the commands to try."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from qatline.components.artifacts.gate_advice import (
    NEXT_COMMANDS,
    describe_verdict,
    failed_first,
    next_command,
)
from qatline.components.artifacts.promotion import Reason, Verdict
from qatline.components.evaluation import champion_gate, gate
from qatline.pipelines.cli.main import app

PASSED = Reason(check="quality_drop", passed=True, message="No worse.")
SLOW = Reason(check="speedup", passed=False, message="Too slow.")
UNKNOWN = Reason(check="of another version", passed=False, message="Refused.")


def test_failed_first_keeps_the_order_otherwise() -> None:
    assert failed_first([PASSED, SLOW, UNKNOWN]) == [SLOW, UNKNOWN, PASSED]


def test_describe_verdict_starts_with_the_failure() -> None:
    text = describe_verdict(Verdict(verdict="reject", reasons=(PASSED, SLOW, UNKNOWN)))
    assert text == (
        "Verdict: reject. Too slow. Try `qatline bench-engine RUN/artifacts/engines/qat.engine "
        "--layers`. Refused. No worse."
    )
    assert describe_verdict(Verdict(verdict="promote")) == "Verdict: promote."


def test_passed_check_needs_no_command() -> None:
    assert next_command(PASSED) == ""


def test_every_check_has_a_command() -> None:
    checks = {"verification", "analysis"}
    for module in (gate, champion_gate):
        checks.update(re.findall(r'check="(\w+)"', Path(module.__file__).read_text()))
    assert checks == set(NEXT_COMMANDS)


@pytest.mark.parametrize("check", NEXT_COMMANDS)
def test_commands_exist_with_their_options(check: str) -> None:
    reason = Reason(check=check, passed=False)
    program, *words = next_command(reason, "runs/x").split()
    assert program == "qatline"
    assert "{" not in " ".join(words)
    command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
    known = {option for each in command.params for option in each.opts}
    assert {word for word in words if word.startswith("--")} <= known
