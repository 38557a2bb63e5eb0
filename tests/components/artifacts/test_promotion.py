"""The verdict of the gate as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qat_lib.errors import StepError
from qatline.components.artifacts import Promotion, Verdict
from qatline.components.artifacts.promotion import Reason


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
