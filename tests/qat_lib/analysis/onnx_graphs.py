"""Write a Q/DQ graph by hand, with the exporter's node names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qat_lib.onnx_view.graph import OnnxGraph


class GraphBuilder:
    """Collect nodes and initializers; every method returns its tensor's name."""

    def __init__(self, *, opset: int = 17, dtype: Any = np.float32) -> None:
        self.opset = opset
        self.dtype = np.dtype(dtype)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def input(
        self, name: str = "x", shape: Sequence[Any] | None = (1, 16, 8, 8), dtype: Any = None
    ) -> str:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        self.inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def output(self, *names: str) -> None:
        for name in names:
            self.outputs.append(helper.make_empty_tensor_value_info(name))

    def const(self, value: Any, dtype: Any = None, name: str = "") -> str:
        name = name or self.fresh("const")
        self.initializers.append(
            numpy_helper.from_array(np.asarray(value, dtype or self.dtype), name)
        )
        return name

    def op(
        self, op: str, inputs: Sequence[str], name: str = "", outputs: int = 1, **attributes: Any
    ) -> str:
        name = name or self.fresh(f"{op.lower()}/{op}")
        made = [self.fresh(f"{name}:{i}") for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), made, name=name, **attributes))
        return made[0]

    def scales(self, scale: Any) -> str:
        return self.const(scale, self.dtype, self.fresh("scale"))

    def q(self, x: str, scale: Any = 0.1, name: str = "", **attributes: Any) -> str:
        name = name or self.fresh(f"{x.split('/')[0].removeprefix('quant_')}_quantizer")
        zero = self.const(np.zeros(np.shape(scale)), np.int8)
        return self.op(
            "QuantizeLinear", [x, self.scales(scale), zero], f"{name}/QuantizeLinear", **attributes
        )

    def dq(self, x: str, scale: Any = 0.1, name: str = "", **attributes: Any) -> str:
        name = name or self.fresh("dq")
        zero = self.const(np.zeros(np.shape(scale)), np.int8)
        return self.op(
            "DequantizeLinear",
            [x, self.scales(scale), zero],
            f"{name}/DequantizeLinear",
            **attributes,
        )

    def qdq(self, x: str, scale: Any = 0.1, name: str = "") -> str:
        name = name or self.fresh(f"{x.split('/')[0].removeprefix('quant_')}_quantizer")
        return self.dq(self.q(x, scale, name), scale, name)

    def weight(
        self, shape: Sequence[int], axis: int | None = 0, *, quantized: bool = True, name: str = "w"
    ) -> str:
        """Make a constant weight: INT8 with DQ along ``axis``, or float.

        With ``axis`` None there is one scale.
        """
        if not quantized:
            return self.const(np.ones(shape), name=self.fresh(name))
        values = self.const(np.ones(shape), np.int8, self.fresh(name))
        scale: Any = 0.02 if axis is None else np.full(shape[axis], 0.02)
        attributes = {} if axis is None else {"axis": axis}
        return self.dq(values, scale, f"{name}_weight", **attributes)

    def conv(
        self,
        x: str,
        channels: int,
        filters: int,
        kernel: int = 3,
        *,
        name: str = "conv",
        quantized: bool = True,
        group: int = 1,
        **attributes: Any,
    ) -> str:
        """Convolve with same-size padding; ``quantized`` refers to the weight only."""
        weight = self.weight(
            (filters, channels // group, kernel, kernel), quantized=quantized, name=name
        )
        bias = self.const(np.zeros(filters), name=self.fresh("bias"))
        attributes = {
            "pads": [kernel // 2] * 4,
            "kernel_shape": [kernel] * 2,
            "group": group,
            **attributes,
        }
        prefix = "quant_" if quantized else ""
        return self.op("Conv", [x, weight, bias], f"{prefix}{name}/Conv", **attributes)

    def dense(
        self, x: str, inputs: int, units: int, *, name: str = "dense", quantized: bool = True
    ) -> str:
        weight = self.weight((inputs, units), axis=1, quantized=quantized, name=name)
        prefix = "quant_" if quantized else ""
        return self.op("MatMul", [x, weight], f"{prefix}{name}/MatMul")

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "graph", self.inputs, self.outputs, self.initializers)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8
        )

    def graph(self) -> OnnxGraph:
        return OnnxGraph(self.model())

    def save(self, path: Path) -> Path:
        path.write_bytes(self.model().SerializeToString())
        return path


def set_type(model: onnx.ModelProto, tensor: str, element: int = TensorProto.FLOAT) -> None:
    """Declare the element type of a tensor inside the graph."""
    model.graph.value_info.append(helper.make_tensor_value_info(tensor, element, None))


def image(g: GraphBuilder, channels: int = 16, **options: Any) -> str:
    """A quantized tensor that some earlier layer wrote."""
    return g.conv(g.qdq(g.input(shape=(1, 16, 16, 16))), 16, channels, 3, name="first", **options)


def end(g: GraphBuilder, *tensors: str) -> GraphBuilder:
    """Finish with a convolution behind every tensor's quantizer.

    Their outputs are quantized so.
    """
    for tensor in tensors:
        g.output(g.conv(g.qdq(tensor), 16, 16, 1, name=f"last{len(g.outputs)}"))
    return g


def batch_norm(g: GraphBuilder, x: str, channels: int = 16, name: str = "bn") -> str:
    return g.op(
        "BatchNormalization",
        [x, *(g.const(np.ones(channels)) for _ in range(4))],
        f"{name}/BatchNormalization",
    )
