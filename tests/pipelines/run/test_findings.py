"""Checks that collect their mistakes."""

from __future__ import annotations

import pytest

from qat_lib.errors import ConfigError, DataError
from qatline.pipelines.config.errors import ConfigProblem
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.run.findings import Check, Findings


def fail(text: str, error: type[Exception] = DataError) -> None:
    raise error(text)


def test_checks_after_a_mistake_are_skipped_with_its_key() -> None:
    done: list[str] = []
    findings = Findings(config=RunConfig())
    findings.run(
        [
            Check(name="data", reads=("data.path",), function=lambda _: fail("no data")),
            Check(name="task", after=("data",), function=lambda _: done.append("task")),
            Check(name="model", after=("task",), function=lambda _: done.append("model")),
            Check(name="gate", reads=("gate",), function=lambda _: done.append("gate")),
            Check(name="again", reads=("data",), function=lambda _: done.append("again")),
        ]
    )
    assert done == ["gate"]
    assert findings.unchecked == dict.fromkeys(("task", "model", "again"), "data.path")
    assert [mistake.line for mistake in findings.mistakes] == ["data.path: no data"]


def test_wrong_settings_skip_their_checks_and_misspelt_keys_do_not() -> None:
    done: list[str] = []
    findings = Findings(config=RunConfig())
    problems = (
        ConfigProblem(source="a.yaml", key="qat.epochs", text="qat.epochs: wrong"),
        ConfigProblem(source="a.yaml", key="data.pth", text="unknown", meant="data.path"),
    )
    findings.add_problems(problems)
    findings.run(
        [
            Check(name="qat", reads=("qat",), function=lambda _: done.append("qat")),
            Check(name="data", reads=("data",), function=lambda _: done.append("data")),
        ]
    )
    assert done == ["data"]
    assert findings.unchecked == {"qat": "qat.epochs"}


def test_mistake_has_the_key_of_its_message_and_occurs_once() -> None:
    findings = Findings(config=RunConfig())
    for _ in range(2):
        with findings.of("tracking"):
            fail("tracking.uri: it is away")
    assert [mistake.key for mistake in findings.mistakes] == ["tracking.uri"]


def test_only_mistake_keeps_its_type() -> None:
    findings = Findings(config=RunConfig())
    findings.raise_mistakes()
    with findings.of("data.path"):
        fail("first")
    with pytest.raises(DataError, match=r"^first$"):
        findings.raise_mistakes()
    with findings.of("seed", blocks=False):
        fail("second", ValueError)
    with pytest.raises(
        ConfigError, match=r"2 mistakes\n  - data.path: first\n  - seed: ValueError: second"
    ):
        findings.raise_mistakes()
