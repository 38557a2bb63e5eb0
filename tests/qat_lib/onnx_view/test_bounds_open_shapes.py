"""Constants repeated along an open batch: class token, position table."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_lib.errors import ExportError
from qat_lib.onnx_view.bounds import check_bounds


def repeated(batch: int | str, times: int = 1) -> onnx.ModelProto:
    """Return a graph that expands a token to its input's shape.

    The result is ``times`` as large.
    """
    token = numpy_helper.from_array(np.ones((1, 1, 4), np.float32), "token")
    factor = numpy_helper.from_array(np.array([times, 1, 1], np.int64), "factor")
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Mul", ["shape", "factor"], ["size"]),
        helper.make_node("Expand", ["token", "size"], ["tokens"]),
        helper.make_node("ReduceSum", ["tokens"], ["y"], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 1, 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])]
    graph = helper.make_graph(nodes, "repeated", inputs, outputs, [token, factor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_constant_repeated_per_batch_is_not_folded() -> None:
    check_bounds(Path("model.onnx"), repeated("N"))


def test_a_constant_of_a_known_size_stays_bounded() -> None:
    check_bounds(Path("model.onnx"), repeated(2))
    with pytest.raises(ExportError, match=r"tokens|Expand"):
        check_bounds(Path("model.onnx"), repeated(2, times=10**9))
    with pytest.raises(ExportError, match=r"tokens|Expand"):
        check_bounds(Path("model.onnx"), repeated("N", times=10**9), {"x": (2, 1, 4)})
