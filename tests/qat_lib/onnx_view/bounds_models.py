"""Small models for a builder's limits, and the resulting messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qat_lib.errors import ExportError
from qat_lib.onnx_view import shapes
from qat_lib.onnx_view.bounds import check_bounds
from qat_lib.onnx_view.inference import infer


def model(*nodes: onnx.NodeProto, shape: Any = (1, 4), **constants: np.ndarray) -> onnx.ModelProto:
    """Return a model of these nodes and a Relu.

    All of them may read the input ``x``.
    """
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    y = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph(
        [*nodes, helper.make_node("Relu", ["x"], ["y"], "relu")], "net", [x], [y], tensors
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def cast(source: str, target: str) -> onnx.NodeProto:
    """Return a Cast to float32."""
    return helper.make_node("Cast", [source], [target], "cast", to=TensorProto.FLOAT)


def found(proto: onnx.ModelProto) -> str:
    """Return the message about a model, empty if within the limits.

    Shapes are inferred in this process, not in a child: nothing of these graphs is large.
    """
    with mock.patch.object(
        shapes, "infer_in_child", lambda skeleton: infer(skeleton, follow_values=True)
    ):
        try:
            check_bounds(Path("model.onnx"), proto)
        except ExportError as error:
            return str(error)
    return ""
