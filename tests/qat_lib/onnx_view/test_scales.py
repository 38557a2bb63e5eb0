"""Scales that a runtime can divide by, and a file's message."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_lib.errors import ExportError
from qat_lib.onnx_view.graph import OnnxGraph
from qat_lib.onnx_view.scales import LEAST_SCALE, describe_bad_scales, require_usable_scales

BELOW = np.nextafter(np.float32(LEAST_SCALE), np.float32(0))


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        ([0.1, 1.0, LEAST_SCALE, 3e38], ""),
        (0.5, ""),
        ([], "there is no scale"),
        (0.0, "1 of 1 scales are unusable (1 zero)"),
        ([0.0, -0.0, 1.0], "2 of 3 scales are unusable (2 zero)"),
        ([-1.0, -np.inf, -1e-40], "3 of 3 scales are unusable (3 negative)"),
        ([np.nan, 1.0], "1 of 2 scales are unusable (1 NaN)"),
        ([np.inf, 1.0], "1 of 2 scales are unusable (1 infinite)"),
        ([[BELOW, 1e-45], [LEAST_SCALE, 1.0]], "2 of 4 scales are unusable (2 subnormal)"),
        (
            [0.0, -1.0, np.nan, np.inf, BELOW, 1.0],
            "5 of 6 scales are unusable (1 zero, 1 negative, 1 NaN, 1 infinite, 1 subnormal)",
        ),
    ],
)
def test_describe_bad_scales(scales: object, expected: str) -> None:
    assert describe_bad_scales(np.asarray(scales, np.float32)) == expected


def graph_of(*nodes: onnx.NodeProto, **constants: np.ndarray) -> OnnxGraph:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(
        nodes, "net", [x], [helper.make_empty_tensor_value_info("y")], tensors
    )
    return OnnxGraph(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


GOOD, BAD = np.array(0.5, np.float32), np.array([0.5, 0.0], np.float32)


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_require_usable_scales_names_first_bad_node(op: str) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "bad"], ["a"], "mul"),
        helper.make_node(op, ["x"], ["b"], "none"),
        helper.make_node(op, ["x", "x"], ["c"], "computed"),
        helper.make_node(op, ["x", "good"], ["d"], "fine"),
        helper.make_node(op, ["x", "bad"], ["e"], "first"),
        helper.make_node(op, ["x", "bad"], ["f"], "second"),
    ]
    require_usable_scales(Path("model.onnx"), graph_of(*nodes[:4], good=GOOD, bad=BAD))
    with pytest.raises(
        ExportError, match=r"In model.onnx, node 'first': 1 of 2 scales are unusable \(1 zero\)"
    ):
        require_usable_scales(Path("model.onnx"), graph_of(*nodes, good=GOOD, bad=BAD))


@pytest.mark.parametrize(
    ("dtype", "refused"),
    [
        (np.float32, True),
        (np.float16, True),
        (np.float64, True),
        (ml_dtypes.bfloat16, True),
        (np.int32, False),
    ],
)
def test_require_usable_scales_looks_at_floating_point_numbers(dtype: type, refused: bool) -> None:
    """Integers in the place of a scale are what the analysis reports."""
    graph = graph_of(
        helper.make_node("QuantizeLinear", ["x", "scale"], ["y"], "q"), scale=np.zeros(1, dtype)
    )
    if refused:
        with pytest.raises(ExportError, match="1 zero"):
            require_usable_scales(Path("model.onnx"), graph)
    else:
        require_usable_scales(Path("model.onnx"), graph)
