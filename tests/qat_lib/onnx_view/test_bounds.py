"""The largest tensor of a graph that engines are built from."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_lib.errors import ExportError
from qat_lib.onnx_view import bounds
from qat_lib.onnx_view.bounds import check_bounds

PATH = Path("model.onnx")


def model(*nodes: onnx.NodeProto, shape: Any = (4, 4), **constants: np.ndarray) -> onnx.ModelProto:
    """Return a model of these nodes, which may read the input ``x``, and a Relu."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_empty_tensor_value_info("y")
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    relu = helper.make_node("Relu", ["x"], ["y"], "relu")
    graph = helper.make_graph([*nodes, relu], "net", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(("elements", "refused"), [(2**31 - 1, False), (2**31, True)])
def test_tensors_have_a_largest_size(elements: int, refused: bool) -> None:
    if not refused:
        check_bounds(PATH, model(shape=(elements,)))
        return
    with pytest.raises(ExportError, match=r"at most 2,147,483,647 elements.*'x' has the shape"):
        check_bounds(PATH, model(shape=(elements,)))


def test_open_dimensions_count_with_their_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_ELEMENTS", 16)
    check_bounds(PATH, model(shape=("batch", 16)))
    check_bounds(PATH, model(shape=("batch", 16)), {"x": (1, 16)})
    with pytest.raises(ExportError, match=r"\[2, 16\]"):
        check_bounds(PATH, model(shape=("batch", 16)), {"x": (2, 16)})


def test_computed_tensors_count(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model(helper.make_node("Concat", ["x", "x"], ["d"], "concat", axis=0))
    monkeypatch.setattr(bounds, "MAX_ELEMENTS", 32)
    check_bounds(PATH, proto)
    monkeypatch.setattr(bounds, "MAX_ELEMENTS", 31)
    with pytest.raises(ExportError, match=r"'d' has the shape \[8, 4\]"):
        check_bounds(PATH, proto)


def test_constant_of_huge_shape_is_refused() -> None:
    node = helper.make_node("ConstantOfShape", ["size"], ["c"])
    with pytest.raises(ExportError, match=r"'c' has the shape \[100000, 1000000\]"):
        check_bounds(PATH, model(node, size=np.array([100_000, 1_000_000])))


def test_cycles_are_refused() -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    with pytest.raises(ExportError, match="cycle"):
        check_bounds(PATH, model(*nodes))
