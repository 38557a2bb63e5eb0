"""The verdict of the gate as a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer

from qat_lib.errors import StepError
from qatline.components.artifacts import Promotion
from qatline.components.artifacts.promotion import (
    NEXT_COMMANDS,
    Reason,
    Verdict,
    describe_verdict,
    failed_first,
    next_command,
)
from qatline.components.evaluation import champion_gate, gate
from qatline.pipelines.cli.main import app


def test_write_verdict_adds_model_name(tmp_path: Path) -> None:
    reason = Reason(check="speedup", passed=True, expected="2", received="3", message="Fast.")
    Promotion(tmp_path).write_verdict(Verdict(verdict="promote", reasons=(reason,), model="m"))
    content = json.loads((tmp_path / "verdict.json").read_text())
    assert list(content) == ["model", "verdict", "reasons"]
    assert Promotion(tmp_path).verdict().promoted
    assert Promotion(tmp_path).verdict().model == "m"


def test_verdict_is_one_of_two(tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text('{"verdict": "maybe"}')
    with pytest.raises(StepError, match="expected 'promote' or 'reject', received 'maybe'"):
        Promotion(tmp_path).verdict()


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
