"""Residual networks as ONNX graphs, written without a training framework.

The engine tests, the overhead benchmark and the GPU validation need the graphs that the exporter
gives, FP32, FP16 and INT8, where no TensorFlow is installed. Weights are random (He, seeded):
latency and agreement between backends do not depend on them, accuracy does, so none is ever
reported for these networks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qat_lib.options import WeightForm

LARGEST_WEIGHT = 63
"""Largest integer of a weight: sums of two products stay within 16 bits on CPUs without VNNI."""

Precision = Literal["fp32", "fp16", "int8"]
Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ResidualNetwork:
    """Shape of a ResNet v1.

    Args:
        blocks: blocks in each stage.
        widths: output channels of each stage.
        image: (channels, height, width) of the input.
        classes: outputs of the last layer.
        bottleneck: 1x1, 3x3, 1x1 blocks (ResNet-50) where true, two 3x3 convolutions where false.
        stem: width of the first convolution; 7x7 with stride 2 and a pool for images above 64
            pixels, else 3x3.
        seed: seed of the weights.
    """

    blocks: tuple[int, ...] = (1, 1)
    widths: tuple[int, ...] = (8, 16)
    image: tuple[int, int, int] = (1, 8, 8)
    classes: int = 10
    bottleneck: bool = False
    stem: int = 8
    seed: int = 0


RESNET50 = ResidualNetwork(
    blocks=(3, 4, 6, 3),
    widths=(256, 512, 1024, 2048),
    image=(3, 224, 224),
    classes=1000,
    bottleneck=True,
    stem=64,
)


def write_network(
    path: Path,
    network: ResidualNetwork,
    precision: Precision = "fp32",
    *,
    weights: WeightForm = "int8",
    batch: int | None = None,
) -> Path:
    """Write ``network`` to ``path`` as ONNX and return it.

    The file has opset 17, the input ``input`` (NCHW) and the output ``logits``.

    Args:
        path: file to write.
        network: the shape.
        precision: what the graph computes in; ``int8`` adds a Q/DQ pair per tensor with ranges seen
            on random input.
        weights: INT8 initializer + DQ, or FP32 + Q + DQ (TensorRT 8.6).
        batch: fixed batch size; None leaves the first dimension dynamic.
    """
    import onnx

    amax: dict[str, float] = {}
    if precision == "int8":
        amax = _observe(network)
    graph = _Writer(network, precision=precision, weights=weights, amax=amax)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(graph.model(batch), str(path))
    return path


def _observe(network: ResidualNetwork) -> dict[str, float]:
    """Return each quantized tensor's largest magnitude on four normal images."""
    import onnx
    import onnxruntime

    probe = _Writer(network, precision="fp32", weights="int8", amax={})
    model = probe.model(None)
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    for name in probe.quantized:
        if name not in known:
            model.graph.output.append(
                onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    batch = np.random.default_rng(network.seed + 1).standard_normal(
        (4, *network.image), dtype=np.float32
    )
    names = [name for name in probe.quantized if name != "input"]
    values = dict(zip(names, session.run(names, {"input": batch}), strict=True)) | {"input": batch}
    return {name: float(np.abs(value).max()) for name, value in values.items()}


@dataclass(kw_only=True)
class _Context:
    nodes: list[Any] = field(default_factory=list)
    initializers: list[Any] = field(default_factory=list)


class _Writer:
    """Emit one network's nodes; every tensor is quantized at most once."""

    def __init__(
        self,
        network: ResidualNetwork,
        *,
        precision: Precision,
        weights: str,
        amax: dict[str, float],
    ) -> None:
        self.network = network
        self.precision = precision
        self.weights = weights
        self.amax = amax
        self.quantized: dict[str, str] = {}
        self._rng = np.random.default_rng(network.seed)
        self._context = _Context()
        self._float = np.dtype(np.float16 if precision == "fp16" else np.float32)
        self._output = self._emit_network()

    def model(self, batch: int | None) -> Any:
        """Return the ONNX model with a fixed or a dynamic batch."""
        from onnx import TensorProto, checker, helper

        first: int | str = "batch" if batch is None else batch
        graph = helper.make_graph(
            self._context.nodes,
            "residual_network",
            [
                helper.make_tensor_value_info(
                    "input", TensorProto.FLOAT, [first, *self.network.image]
                )
            ],
            [
                helper.make_tensor_value_info(
                    "logits", TensorProto.FLOAT, [first, self.network.classes]
                )
            ],
            self._context.initializers,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        checker.check_model(model)
        return model

    # ------------------------------------------------------------------ nodes
    def _emit_network(self) -> str:
        channels, height, _ = self.network.image
        tensor = "input"
        if self.precision == "fp16":
            tensor = self._node("Cast", "cast_input", [tensor], to=10)
        large = height > 64
        tensor = self._convolution(
            "stem",
            tensor,
            channels,
            self.network.stem,
            7 if large else 3,
            2 if large else 1,
            relu=True,
        )
        if large:
            tensor = self._node(
                "MaxPool", "pool", [tensor], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
            )
        width = self.network.stem
        for stage, (count, out) in enumerate(
            zip(self.network.blocks, self.network.widths, strict=True)
        ):
            for block in range(count):
                stride = 2 if stage and not block else 1
                tensor = self._block(
                    f"stage{stage + 1}_block{block + 1}", tensor, width, out, stride
                )
                width = out
        tensor = self._node("GlobalAveragePool", "gap", [self._activation(tensor)])
        tensor = self._node("Flatten", "flatten", [self._activation(tensor)], axis=1)
        kernel = self._weight("predictions", (width, self.network.classes), axis=1, gain=1.0)
        bias = self._constant("predictions/bias", np.zeros(self.network.classes, self._float))
        tensor = self._node("Gemm", "predictions", [tensor, kernel, bias])
        if self.precision == "fp16":
            return self._node("Cast", "logits", [tensor], output="logits", to=1)
        self._context.nodes[-1].output[0] = "logits"
        return "logits"

    def _block(self, name: str, tensor: str, width: int, out: int, stride: int) -> str:
        shortcut = tensor
        if stride != 1 or width != out:
            shortcut = self._convolution(
                f"{name}_shortcut", tensor, width, out, 1, stride, relu=False
            )
        if self.network.bottleneck:
            inner = out // 4
            tensor = self._convolution(f"{name}_conv1", tensor, width, inner, 1, 1, relu=True)
            tensor = self._convolution(f"{name}_conv2", tensor, inner, inner, 3, stride, relu=True)
            tensor = self._convolution(
                f"{name}_conv3", tensor, inner, out, 1, 1, relu=False, gain=0.5
            )
        else:
            tensor = self._convolution(f"{name}_conv1", tensor, width, out, 3, stride, relu=True)
            tensor = self._convolution(
                f"{name}_conv2", tensor, out, out, 3, 1, relu=False, gain=0.5
            )
        added = self._node("Add", f"{name}_add", [tensor, self._activation(shortcut)])
        return self._node("Relu", f"{name}_relu", [added])

    def _convolution(
        self,
        name: str,
        tensor: str,
        width: int,
        out: int,
        size: int,
        stride: int,
        *,
        relu: bool,
        gain: float = 1.0,
    ) -> str:
        kernel = self._weight(name, (out, width, size, size), axis=0, gain=gain)
        bias = self._constant(
            f"{name}/bias", (0.1 * self._rng.standard_normal(out)).astype(self._float)
        )
        pad = size // 2
        result = self._node(
            "Conv",
            name,
            [self._activation(tensor), kernel, bias],
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[pad] * 4,
        )
        return self._node("Relu", f"{name}_relu", [result]) if relu else result

    # ------------------------------------------------------------------ Q/DQ pairs
    def _activation(self, tensor: str) -> str:
        """Return ``tensor`` behind its one Q/DQ pair.

        The tensor itself while ranges are not known.
        """
        if tensor not in self.quantized:
            self.quantized[tensor] = tensor
            if self.precision == "int8":
                scale = np.float32(max(self.amax[tensor], 1e-6) / 127)
                parameters = [
                    self._constant(f"{tensor}/scale", np.array(scale, np.float32)),
                    self._constant(f"{tensor}/zero_point", np.array(0, np.int8)),
                ]
                levels = self._node(
                    "QuantizeLinear", f"{tensor}/QuantizeLinear", [tensor, *parameters]
                )
                self.quantized[tensor] = self._node(
                    "DequantizeLinear", f"{tensor}/DequantizeLinear", [levels, *parameters]
                )
        return self.quantized[tensor]

    def _weight(self, name: str, shape: tuple[int, ...], *, axis: int, gain: float) -> str:
        fan_in = int(np.prod(shape)) // shape[axis]
        kernel = (gain * np.sqrt(2 / fan_in) * self._rng.standard_normal(shape)).astype(np.float32)
        if self.precision != "int8":
            return self._constant(f"{name}/kernel", kernel.astype(self._float))
        others = tuple(i for i in range(len(shape)) if i != axis)
        scale = np.abs(kernel).max(axis=others) / np.float32(LARGEST_WEIGHT)
        parameters = [
            self._constant(f"{name}/kernel/scale", scale.astype(np.float32)),
            self._constant(f"{name}/kernel/zero_point", np.zeros(shape[axis], np.int8)),
        ]
        if self.weights == "qdq":
            source = self._constant(f"{name}/kernel", kernel)
            levels = self._node(
                "QuantizeLinear", f"{name}/kernel/QuantizeLinear", [source, *parameters], axis=axis
            )
        else:
            spread = scale.reshape([-1 if i == axis else 1 for i in range(len(shape))])
            rounded = np.clip(np.rint(kernel / spread), -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(
                np.int8
            )
            levels = self._constant(f"{name}/kernel/int8", rounded)
        return self._node(
            "DequantizeLinear", f"{name}/kernel/DequantizeLinear", [levels, *parameters], axis=axis
        )

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self._context.initializers.append(numpy_helper.from_array(value, name))
        return name

    def _node(
        self, op: str, name: str, inputs: list[str], *, output: str | None = None, **attributes: Any
    ) -> str:
        from onnx import helper

        result = output or f"{name}:0"
        self._context.nodes.append(helper.make_node(op, inputs, [result], name=name, **attributes))
        return result
