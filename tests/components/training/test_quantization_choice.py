"""From the quantization settings to specs and cases."""

from pathlib import Path

import pytest

from qat_lib import QuantizationSpec, TensorRTQDQCase
from qat_lib.errors import ConfigError
from qatline.components.settings import QuantizationSettings
from qatline.components.tasks import task_for
from qatline.components.training.quantization_choice import (
    check_case_name,
    known_cases,
    open_cases,
    read_spec,
)


def test_read_spec_takes_none_a_list_or_a_file(tmp_path: Path) -> None:
    assert read_spec(QuantizationSettings()) is None
    spec = QuantizationSpec().add("head", quantize_input=False)
    spec.to_yaml(tmp_path / "spec.yaml")
    named = read_spec(QuantizationSettings(spec=str(tmp_path / "spec.yaml")))
    listed = read_spec(QuantizationSettings(spec=spec.to_list()))
    assert named is not None
    assert listed is not None
    assert named.to_list() == listed.to_list() == spec.to_list()


def test_open_cases_makes_our_own_and_the_users() -> None:
    ours, users = open_cases(
        QuantizationSettings(cases=["TensorRTQDQCase", "collections:OrderedDict"])
    )
    assert isinstance(ours, TensorRTQDQCase)
    assert users == {}


@pytest.mark.parametrize(
    ("setting", "task", "expected"),
    [
        ("auto", None, False),
        ("auto", "classification", False),
        ("auto", "detection", True),
        ("always", "classification", True),
        ("never", "detection", False),
    ],
)
def test_open_cases_asks_the_task_about_float_outputs(
    setting: str, task: str | None, expected: bool
) -> None:
    (case,) = open_cases(
        QuantizationSettings(float_outputs=setting), None if task is None else task_for(task)
    )
    assert case.float_outputs == expected


@pytest.mark.parametrize("name", ["TensorRTQDQCase", "module:Case", "a.b.c:Case"])
def test_check_case_name_takes_what_may_be_one(name: str) -> None:
    check_case_name(name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("TensorRTQDQCas", r"Did you mean TensorRTQDQCase\?"),
        ("xyzxyz", f"Known: {', '.join(known_cases())}, or module:Class"),
        ("module:", "Known: "),
        (":Case", "Known: "),
        ("a b:Case", "Known: "),
        ("a..b:Case", "Known: "),
        ("json", "Known: "),
    ],
)
def test_check_case_name_refuses_the_rest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        check_case_name(name)
