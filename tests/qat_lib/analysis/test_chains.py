"""Which nodes a kernel can take into its epilogue."""

import onnx
import pytest
from onnx import TensorProto, helper

from qat_lib.analysis.chains import joins
from qat_lib.onnx_view.graph import OnnxGraph


def add_of(constant: list[int], *, known: bool = True) -> OnnxGraph:
    """An Add of ``x`` (4, 3) and a constant of ones."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3] if known else None)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    ones = helper.make_tensor("c", TensorProto.FLOAT, constant, [1.0] * int(onnx.helper.np.prod(constant)))
    node = helper.make_node("Add", ["x", "c"], ["y"], "add")
    model = helper.make_model(
        helper.make_graph([node], "net", [x], [y], [ones]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    return OnnxGraph(model)


@pytest.mark.parametrize(
    ("constant", "known", "expected"),
    [([3], True, True), ([1], True, True), ([2, 1, 3], True, False), ([3], False, True)],
    ids=["bias", "scalar", "broadcasts to a higher rank", "rank unknown"],
)
def test_joins_takes_a_bias_that_keeps_the_rank(constant: list[int], known: bool, expected: bool) -> None:
    graph = add_of(constant, known=known)
    assert joins(graph, graph.nodes[0]) is expected
