"""Small ONNX graphs, and ways to run and compare them."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest


class Lab:
    """Build, run (without optimizations) and compare graphs in ONNX's text form."""

    def build(self, text: str, *, opset: int = 17, **constants: Any) -> ir.Model:
        """Return the graph ``text``, with a layer's name at each node.

        ``constants`` become initializers.
        """
        proto = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : {opset}]> agraph {text}'
        )
        for name, value in constants.items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        for output in proto.graph.output:
            if not output.type.tensor_type.shape.dim:
                output.ClearField("type")  # ``float y``: what it is, is inferred
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
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
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

    def formula(
        self, text: str, inputs: dict[str, Any], *, opset: int = 17, **constants: Any
    ) -> ir.Model:
        """Return the graph of expressions such as ``Add(Conv(x, w), b)``.

        The constants that they name are in it. Several results are separated by semicolons;
        ``c = Conv(x, w)`` names what is read more than once. ``inputs`` maps the names of the
        inputs to arrays.
        """
        lines: list[str] = []
        results: list[str] = []
        for statement in text.split(";"):
            name, expression = re.fullmatch(r"(?:\s*(\w+) = )?(.*)", statement, re.DOTALL).groups()
            while call := re.search(r"\w+(<(?:->|[^<>])*>)?\([^()]*\)", expression):
                target = (
                    f"t{len(lines)}"
                    if call[0] != expression.strip()
                    else name or f"y{len(results)}"
                )
                lines.append(f"{target} = {call[0]}")
                expression = expression[: call.start()] + target + expression[call.end() :]
            if name is None:
                results.append(f"float {expression.strip()}")
        used = {
            key: value for key, value in constants.items() if re.search(rf"\b{key}\b(?! =)", text)
        }
        kinds = {key: onnx.helper.np_dtype_to_tensor_dtype(x.dtype) for key, x in inputs.items()}
        names = {key: onnx.TensorProto.DataType.Name(kind).lower() for key, kind in kinds.items()}
        declared = ", ".join(
            f"{names[key]}[{','.join(map(str, x.shape))}] {key}" for key, x in inputs.items()
        )
        return self.build(
            f"({declared}) => ({', '.join(results)}) {{ {chr(10).join(lines)} }}",
            opset=opset,
            **used,
        )

    def results(self, model: ir.Model) -> list[str]:
        """Return outputs as expressions over inputs and constants: ``["Add(Conv(x, w), b)"]``."""

        def written(value: ir.Value | None) -> str:
            node = None if value is None else value.producer()
            if value is None or node is None:
                return "" if value is None else str(value.name)
            attributes = {
                a.name: list(a.value) if isinstance(a.value, tuple) else a.value
                for a in node.attributes.values()
            }
            given = ", ".join(
                f"{key} = {content!r}" for key, content in attributes.items()
            ).replace("'", '"')
            call = f"{node.op_type}<{given}>" if given else node.op_type
            output = f"[{value.index()}]" if value.index() else ""
            return f"{call}({', '.join(map(written, node.inputs))}){output}"

        return [written(value) for value in model.graph.outputs]

    def constants(self, model: ir.Model) -> dict[str, np.ndarray]:
        """Return the initializers by name."""
        return {name: np.asarray(v.const_value) for name, v in model.graph.initializers.items()}

    def check(
        self,
        model: ir.Model,
        lowering: Callable[[ir.Model], ir.Model],
        inputs: dict[str, np.ndarray],
        *,
        rtol: float = 0.0,
        atol: float = 0.0,
    ) -> ir.Model:
        """Apply a pass and return the new model.

        The outputs must be the same and the argument untouched.
        """
        before = ir.to_proto(model).SerializeToString(deterministic=True)
        expected = self.run(model, **inputs)
        lowered = lowering(model)
        assert ir.to_proto(model).SerializeToString(deterministic=True) == before, (
            "the pass changed its argument"
        )
        for want, got in zip(expected, self.run(lowered, **inputs), strict=True):
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
        return lowered


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)
