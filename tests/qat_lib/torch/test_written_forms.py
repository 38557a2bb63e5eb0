"""What PyTorch's exporter computes at run time, written as what it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qat_lib.export.passes.fold_constants import fold_constants
from qat_lib.torch.written_forms import simplify


def build(text: str, inputs: str = "float[b,6,4,4] x", **constants: Any) -> ir.Model:
    """Return a graph in operator set 18 with its shapes inferred."""
    body = f"({inputs}) => (float y) {{ {text} }}"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> agraph {body}')
    for name, value in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    proto.graph.output[0].ClearField("type")
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    for index, node in enumerate(model.graph):
        node.name = f"node_{index}"
    return model


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


ZERO_BIAS = """
zero = Constant<value_float = 0.0>()
cast = CastLike(zero, x)
shape = Shape<start = 0, end = 1>(w)
bias = Expand(cast, shape)
y = Conv(x, w, bias)
"""


def test_simplify_leaves_out_the_exporters_zero_bias() -> None:
    model = build(ZERO_BIAS, w=np.ones((2, 6, 1, 1), np.float32))
    simplify(model)
    lowered = fold_constants(model)
    assert operators(lowered) == ["Conv"]
    assert len(lowered.graph[0].inputs) == 2


@pytest.mark.parametrize(
    "text",
    [
        ZERO_BIAS.replace("0.0", "0.5"),
        "bias = Identity(zeros) y = Conv(x, w, bias)",
        "y = Conv(x, w, zeros)",
    ],
)
def test_simplify_keeps_the_modules_bias(text: str) -> None:
    weights = {"w": np.ones((2, 6, 1, 1), np.float32), "zeros": np.zeros(2, np.float32)}
    model = build(text, **weights)
    simplify(model)
    assert operators(model)[-1] == "Conv"
    assert len(model.graph[-1].inputs) == 3


def test_simplify_writes_a_known_shape_only() -> None:
    model = build(
        "s = Shape<start = 1>(x) t = Shape(x) u = Concat<axis = 0>(s, t) y = Cast<to = 1>(u)"
    )
    simplify(model)
    assert operators(model) == ["Shape", "Concat", "Cast"]
    (constant,) = model.graph.initializers.values()
    assert constant.const_value is not None
    assert constant.const_value.numpy().tolist() == [6, 4, 4]


def test_simplify_writes_cast_to_known_type() -> None:
    model = build("y = CastLike(x, k)", k=np.int64(1))
    simplify(model)
    (node,) = model.graph
    assert (node.op_type, len(node.inputs)) == ("Cast", 1)
    assert node.attributes["to"].as_int() == ir.DataType.INT64


@pytest.mark.parametrize(
    ("sizes", "expected"), [(np.int64(4), [4, 2]), (np.int64([1, 5]), [1, 5]), (np.int64(9), [6])]
)
def test_simplify_writes_sequence_parts_as_split(sizes: Any, expected: Any) -> None:
    last = len(expected) - 1
    model = build(
        "s = SplitToSequence<axis = 1>(x, sizes) a = SequenceAt(s, zero) b = SequenceAt(s, last) "
        "y = Concat<axis = 1>(b, a)",
        sizes=sizes,
        zero=np.int64(0),
        last=np.int64(last),
    )
    simplify(model)
    assert operators(model) == ["Split", "Concat"]
    split, concat = model.graph
    assert split.inputs[1].const_value.numpy().tolist() == expected
    assert [value.index() for value in concat.inputs] == [last, 0]


def test_simplify_leaves_a_sequence_of_unknown_parts() -> None:
    text = "s = SplitToSequence(x, sizes) y = SequenceAt(s, zero)"
    model = build(text, sizes=np.int64(1), zero=np.int64(0))
    simplify(model)  # the batch is open
    assert operators(model) == ["SplitToSequence", "SequenceAt"]


@pytest.mark.parametrize(("end", "expected"), [(1, ["Neg"]), (2, None)])
def test_simplify_writes_a_sequence_of_one_part_as_its_tensor(end: int, expected: Any) -> None:
    model = build(
        f"shape = Shape<start = 0, end = {end}>(x) size = Squeeze(shape) "
        "s = SplitToSequence<axis = 0, keepdims = 1>(x, size) a = SequenceAt(s, zero) y = Neg(a)",
        zero=np.int64(0),
    )
    simplify(model)
    found = operators(model)
    # The size of the batch stays, for a later removal of unread nodes.
    assert [name for name in found if name not in ("Shape", "Squeeze")] == (
        expected or ["SplitToSequence", "SequenceAt", "Neg"]
    )
