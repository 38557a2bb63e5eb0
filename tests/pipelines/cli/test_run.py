"""Exit codes of finished runs."""

from __future__ import annotations

import pytest
import typer

from qatline.pipelines.cli.run import REJECTED_CODE, end_with
from qatline.pipelines.run.result import GateResult, RunResult


def result(verdict: str | None) -> RunResult:
    return RunResult(run_id="r", run_dir="runs/r", gate=GateResult(verdict=verdict))


@pytest.mark.parametrize("verdict", ["promote", None])
def test_end_with_zero_for_what_was_not_rejected(verdict: str | None) -> None:
    assert end_with(result(verdict), accept_rejected=False) is None  # type: ignore[func-returns-value]


def test_end_with_a_code_of_its_own_for_rejected_engines() -> None:
    with pytest.raises(typer.Exit) as raised:
        end_with(result("reject"), accept_rejected=False)
    assert raised.value.exit_code == REJECTED_CODE == 3


def test_end_with_zero_for_accepted_rejections() -> None:
    assert end_with(result("reject"), accept_rejected=True) is None  # type: ignore[func-returns-value]
