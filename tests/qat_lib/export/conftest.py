"""Small ONNX graphs, and ways to run and compare them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest


class Lab:
    """Builds graphs from ONNX's text form, runs them without optimizations, and compares them."""

    def build(self, text: str, *, opset: int = 17, **constants: Any) -> ir.Model:
        """Return the graph ``text`` with ``constants`` as initializers and a layer's name at each node."""
        proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> agraph {text}')
        for name, value in constants.items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        for output in proto.graph.output:
            if not output.type.tensor_type.shape.dim:
                output.type.tensor_type.ClearField("shape")  # ``float y``: the shape is inferred
        model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
        for index, node in enumerate(model.graph):
            node.name = f"node_{index}"
            node.meta["keras_layer"] = f"layer_{index}"
        return model

    def run(self, model: ir.Model, **inputs: np.ndarray) -> list[np.ndarray]:
        """Return the outputs of a model."""
        proto = ir.to_proto(model)
        onnx.checker.check_model(proto, full_check=True)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(y) for y in session.run(None, inputs)]

    def ops(self, model: ir.Model) -> Counter[str]:
        """Return how many nodes of each operator a model has."""
        return Counter(node.op_type for node in model.graph)

    def order(self, model: ir.Model) -> list[str]:
        """Return the operators in graph order."""
        return [node.op_type for node in model.graph]

    def node(self, model: ir.Model, op_type: str, index: int = 0) -> ir.Node:
        """Return one of the nodes of an operator."""
        return [node for node in model.graph if node.op_type == op_type][index]

    def check(
        self,
        model: ir.Model,
        lowering: Callable[[ir.Model], ir.Model],
        inputs: dict[str, np.ndarray],
        *,
        rtol: float = 0.0,
        atol: float = 0.0,
    ) -> ir.Model:
        """Apply a pass; require the same outputs and an untouched argument; return the new model."""
        before = ir.to_proto(model).SerializeToString(deterministic=True)
        expected = self.run(model, **inputs)
        lowered = lowering(model)
        assert ir.to_proto(model).SerializeToString(deterministic=True) == before, "the pass changed its argument"
        for want, got in zip(expected, self.run(lowered, **inputs), strict=True):
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
        return lowered


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)
