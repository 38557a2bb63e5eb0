"""Records: what counts as measured, and which keys are written."""

from __future__ import annotations

import math

import pytest

from qatline.components.artifacts.record import Measured, Record, Text, objects


class Timing(Record):
    seconds: Measured = None
    device: Text = ""


@pytest.mark.parametrize("value", [None, True, "3", math.nan, math.inf, [], {}])
def test_measured_is_a_finite_number_or_nothing(value: object) -> None:
    assert Timing.model_validate({"seconds": value}).seconds is None


@pytest.mark.parametrize("value", [3, 0.5, 0])
def test_measured_keeps_whole_numbers_whole(value: float) -> None:
    seconds = Timing.model_validate({"seconds": value}).seconds
    assert (seconds, type(seconds)) == (value, type(value))


def test_text_of_a_null_is_empty() -> None:
    assert Timing.model_validate({"device": None}).device == ""


def test_to_dict_has_the_given_keys_in_order() -> None:
    assert Timing().to_dict() == {}
    assert list(Timing(device="cpu", seconds=None).to_dict().items()) == [
        ("seconds", None),
        ("device", "cpu"),
    ]


def test_objects_leaves_out_what_is_no_object() -> None:
    assert objects({"a": {"x": 1}, "b": 3, "c": None}) == {"a": {"x": 1}}
    assert objects({"a": Timing()}) == {"a": Timing()}
    assert objects([1]) == objects(None) == {}
