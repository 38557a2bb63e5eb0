"""TensorRT's parser errors by the analyzer's codes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from qat_lib.analysis import CATALOG
from qat_lib.engines.tensorrt.diagnosis import read_parser_errors


def parser(*reasons: str) -> SimpleNamespace:
    """A parser that names nodes by index, as TensorRT before 10."""
    errors = [
        SimpleNamespace(desc=lambda reason=reason: reason, node=lambda index=index: index)
        for index, reason in enumerate(reasons)
    ]
    return SimpleNamespace(num_errors=len(errors), get_error=errors.__getitem__)


@pytest.mark.parametrize(
    ("operator", "reason", "code"),
    [
        ("QLinearConv", "No importer registered for op", "V05"),
        ("QuantizeLinear", "Scale coefficients must all be positive", "V01"),
        ("QuantizeLinear", "Only symmetric quantization is supported", "V02"),
        ("DequantizeLinear", "UINT8 is not supported", "V03"),
        ("DequantizeLinear", "The number of scales is 3", "V04"),
        ("QuantizeLinear", "Requires opset 13", "V06"),
        ("NonZero", "Unsupported", "V07"),
    ],
)
def test_read_parser_errors_gives_codes_of_the_catalog(
    operator: str, reason: str, code: str
) -> None:
    (found,) = read_parser_errors(parser(reason), False, [("layer/node", operator)])
    assert (found.code, found.node, found.operator) == (code, "layer/node", operator)
    assert found.reason == f"{reason}."
    assert code in CATALOG


def test_read_parser_errors_of_an_unknown_node() -> None:
    found = read_parser_errors(parser("First.", "Second"), False, [("first", "Conv")])
    assert [(each.node, each.reason) for each in found] == [
        ("first", "First."),
        ("the graph", "Second."),
    ]
