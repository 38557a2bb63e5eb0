"""Titles and order of an evaluation's rows."""

from __future__ import annotations

import pytest

from qatline.components.artifacts.variants import in_order, reference_title, row_title


@pytest.mark.parametrize(
    ("framework", "title"),
    [("keras", "FP32 Keras"), ("torch", "FP32 PyTorch"), ("", "FP32 Keras"), (None, "FP32 Keras")],
)
def test_reference_title_names_the_framework(framework: str | None, title: str) -> None:
    assert reference_title(framework) == title
    assert row_title("fp32", framework) == title


def test_row_title_of_an_engine_is_that_of_its_variant() -> None:
    assert row_title("qat_engine", "openvino") == "QAT INT8 engine"
    assert row_title("mine", "torch") == "mine"


def test_in_order_puts_unknown_rows_last() -> None:
    assert in_order(["mine", "qat_engine", "fp32"]) == ["fp32", "qat_engine", "mine"]
