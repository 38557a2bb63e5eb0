"""Graphs of operator set 18 in older ones: changes and limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from qat_lib.errors import ExportError
from qat_lib.torch.older_opset import lower_opset

X = np.random.default_rng(0).normal(size=(2, 6, 4, 4)).astype(np.float32)


def build(text: str, **constants: Any) -> ir.Model:
    """Return a chain of operators over ``x``, in operator set 18."""
    body = f"(float[2,6,4,4] x) => (float y) {{ {text} }}"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> agraph {body}')
    for name, value in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    proto.graph.output[0].ClearField("type")
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def run(model: ir.Model) -> np.ndarray:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"x": X})[0])


AXES = np.int64([2, 3])


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize(
    ("text", "constants"),
    [
        ("y = ReduceMean<keepdims = 0>(x, axes)", {"axes": AXES}),
        ("y = ReduceMax<keepdims = 1>(x)", {}),
        ("y = ReduceMin<noop_with_empty_axes = 0>(x, axes)", {"axes": np.int64([-1])}),
        ("y = ReduceL2(x, axes)", {"axes": np.int64([])}),
        ("y = ReduceSum(x, axes)", {"axes": AXES}),
        (
            "y = Pad(x, pads, zero)",
            {"pads": np.int64([0, 0, 1, 1, 0, 0, 2, 2]), "zero": X[0, 0, 0, 0]},
        ),
        ("y = Mish(x)", {}),
        ("a, b, c = Split<axis = 1, num_outputs = 3>(x) y = Sum(a, b, c)", {}),
        ("a, b = Split<axis = 1, num_outputs = 2>(x) y = Sub(a, b)", {}),
        (
            "z = Concat<axis = 1>(x, w) a, b, c = Split<axis = 1, num_outputs = 3>(z) "
            "y = Concat<axis = 1>(c, a, b)",
            {"w": X[:, :1]},
        ),
        ("y = Reshape<allowzero = 1>(x, shape)", {"shape": np.int64([2, -1])}),
        ("y = Resize<antialias = 0>(x, , scales)", {"scales": np.float32([1, 1, 2, 2])}),
        ("y = Relu(x)", {}),
    ],
)
def test_lower_opset_keeps_the_values(text: str, constants: Any, opset: int) -> None:
    model = build(text, **constants)
    expected = run(model)
    lower_opset(model, opset)
    assert model.opset_imports[""] == opset
    np.testing.assert_allclose(run(model), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "constants", "opset", "needed"),
    [
        ("y = HardSwish(x)", {}, 13, "HardSwish"),
        ("s = Shape<start = 1>(x) y = Cast<to = 1>(s)", {}, 14, "Shape with start=1"),
        ("y = ReduceMean<noop_with_empty_axes = 1>(x)", {}, 17, "ReduceMean with noop"),
        (
            "y = Pad(x, pads, , axes)",
            {"pads": np.int64([1, 1]), "axes": np.int64([3])},
            17,
            "Pad with 4 inputs",
        ),
        (
            "s = Shape(x) a = Gather(s, i) y = ReduceMean(x, a)",
            {"i": np.int64([0])},
            17,
            "ReduceMean over axes that are computed",
        ),
        (
            "y = Reshape<allowzero = 1>(x, shape)",
            {"shape": np.int64([0, 5])},
            13,
            "Reshape with allowzero=1",
        ),
    ],
)
def test_lower_opset_says_what_is_newer(text: str, constants: Any, opset: int, needed: str) -> None:
    model = build(text, **constants)
    with pytest.raises(ExportError, match=f"set {opset}. The module needs {needed}.*opset=18"):
        lower_opset(model, opset)
