"""A builder's constants in bytes and multiplications, and a node's subgraphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from bounds_models import cast, found, model
from onnx import TensorProto, helper, numpy_helper

from qat_lib.onnx_view import bounds


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Set the bytes for folded constants, and those per weight byte."""

    def leave(size: int, ratio: int = 0) -> None:
        monkeypatch.setattr(bounds, "MAX_FOLDED_BYTES", size)
        monkeypatch.setattr(bounds, "MAX_FOLDED_RATIO", ratio)

    return leave


C = np.zeros(4, np.float32)  # 16 bytes


def test_the_room_for_folded_constants_is_a_sum(room: Callable[..., None]) -> None:
    proto = model(cast("c", "d"), helper.make_node("Identity", ["d"], ["e"]), c=C)
    room(16, 1)
    assert found(proto) == ""
    room(15, 1)
    assert "take more than 15 bytes beside the weights" in found(proto)
    empty = model(cast("c", "d"), c=C, nothing=np.zeros(0, np.float32))
    room(0, 1)
    assert found(empty) == ""


def test_constants_of_unknown_size_take_no_room(room: Callable[..., None]) -> None:
    unknown = helper.make_node("Unknown", ["c"], ["u"], "unknown")
    proto = model(unknown, cast("c", "d"), c=C)
    room(16)
    assert found(proto) == ""
    room(15)
    assert "up to node 'cast' (Cast)" in found(proto)


@pytest.mark.parametrize("op", ["Range", "Expand", "Tile", "Upsample", "OneHot", "EyeLike"])
def test_growing_constants_need_a_known_size(op: str) -> None:
    unknown = helper.make_node("Unknown", ["c"], ["u"])
    text = found(model(unknown, helper.make_node(op, ["u"] * 3, ["d"], "grow"), c=C))
    assert f"node 'grow' ({op}) makes a constant whose size can't be known" in text
    assert found(model(unknown, helper.make_node("Mul", ["u", "u"], ["d"]), c=C)) == ""


def test_a_constant_node_is_no_work(room: Callable[..., None]) -> None:
    """What it gives is a constant as an initializer is."""
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(C))
    room(0)
    assert found(model(constant)) == ""
    assert "'cast' (Cast)" in found(model(constant, cast("c", "d")))


@pytest.mark.parametrize(("op", "size"), [("Shape", 2 * 8 + 2 * 4), ("Size", 8 + 4)])
def test_known_shape_is_a_constant(room: Callable[..., None], op: str, size: int) -> None:
    nodes = [helper.make_node(op, ["x"], ["s"], "ask"), cast("s", "d")]
    room(size)
    assert found(model(*nodes, shape=(2, 4))) == ""
    room(size - 1)
    assert "up to node 'cast' (Cast)" in found(model(*nodes, shape=(2, 4)))
    room(0)
    assert found(model(*nodes, shape=("batch", 4))) == ""
    assert found(model(*nodes, shape=None)) == ""


def test_products_of_unknown_shape_count_their_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = helper.make_node("Unknown", ["c"], ["u"])
    proto = model(unknown, helper.make_node("MatMul", ["u", "u"], ["p"], "product"), c=C)
    proto.graph.value_info.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, [3, 5]))
    monkeypatch.setattr(bounds, "MAX_FOLDED_MACS", 15)
    assert found(proto) == ""
    monkeypatch.setattr(bounds, "MAX_FOLDED_MACS", 14)
    assert "products of constants" in found(proto)


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Conv", "ConvTranspose", "Shape", "Size"])
@pytest.mark.parametrize(("inputs", "outputs"), [([], ["d"]), (["c"], ["d"]), (["c", "c"], [])])
def test_operators_that_lack_operands_or_outputs_take_nothing(
    op: str, inputs: list[str], outputs: list[str]
) -> None:
    assert found(model(helper.make_node(op, inputs, outputs), c=C)) == ""


def branches(*nodes: onnx.NodeProto, **constants: np.ndarray) -> onnx.NodeProto:
    """A node with two graphs; the second has these nodes and constants."""
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    y = helper.make_empty_tensor_value_info("z")
    first = helper.make_graph([helper.make_node("Relu", ["x"], ["z"])], "first", [], [y])
    second = helper.make_graph(nodes, "second", [], [y], tensors)
    return helper.make_node("If", ["x"], ["chosen"], "if", then_branch=second, else_branch=first)


def test_constants_inside_of_a_branch_count(room: Callable[..., None]) -> None:
    proto = model(branches(cast("c", "z"), c=C))
    room(16)
    assert found(proto) == ""
    room(15)
    assert "'cast' (Cast)" in found(proto)
    data = model(branches(cast("x", "z"), c=C))
    assert found(data) == ""


def test_tensors_inside_of_a_branch_have_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model(
        branches(helper.make_node("Concat", ["x", "x"], ["z"], "concat", axis=0)), shape=(4, 4)
    )
    monkeypatch.setattr(bounds, "MAX_ELEMENTS", 32)
    assert found(proto) == ""
    monkeypatch.setattr(bounds, "MAX_ELEMENTS", 31)
    assert "'concat' makes 'z', which has the shape [8, 4]" in found(proto)


def test_nodes_inside_of_a_branch_count(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model(branches(cast("x", "z")))  # with the If, the Relu and that of the other branch
    monkeypatch.setattr(bounds, "MAX_NODES", 4)
    assert found(proto) == ""
    monkeypatch.setattr(bounds, "MAX_NODES", 3)
    assert "there are 4 nodes; engines are built of up to 3." in found(proto)
