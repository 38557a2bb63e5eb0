"""Graphs that OpenVINO computes wrongly are built in a form that it computes correctly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from reference_networks import ResidualNetwork, write_network

import qat_lib
from qat_lib.engines import BuildSpec, build_engine, load_engine
from qat_lib.engines import openvino as openvino_backend
from qat_lib.engines.environment import cpu_device
from qat_lib.engines.onnxruntime import reference_session
from qat_lib.engines.openvino_forms import SoundForm, sound_form
from qat_lib.errors import EngineBuildError
from qat_lib.options import WeightForm

CHANNELS = 8
WRONG_IN = "2026.4"
IMAGES = ["b", CHANNELS, 6, 6]
SIGNED = np.int8(0)
SAFE = 64
"""Largest weight that, twice, fits the sums of every CPU; the forms matter on all of them."""


class Graph:
    """Writes an INT8 graph, node after node."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.random = np.random.default_rng(0)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}:0"], name=name, **attributes))
        return f"{name}:0"

    def pair(self, tensor: str, zero: Any = SIGNED, scale: float = 0.03) -> str:
        step, zero_point = self.constant(np.float32(scale)), self.constant(zero)
        integers = self.node("QuantizeLinear", tensor, step, zero_point)
        return self.node("DequantizeLinear", integers, step, zero_point)

    def conv(
        self,
        tensor: str,
        inputs: int,
        bias: Any = None,
        *,
        most: int = SAFE,
        **attributes: Any,
    ) -> str:
        integers = self.random.integers(-most, most + 1, (CHANNELS, inputs, 1, 1)).astype(np.int8)
        scale = self.constant(np.full(CHANNELS, 0.007, np.float32))
        zero = self.constant(np.zeros(CHANNELS, np.int8))
        weights = self.node("DequantizeLinear", self.constant(integers), scale, zero, axis=0)
        more = []
        if bias is not None:
            more.append(self.constant(np.full(CHANNELS, bias, np.float32)))
        return self.node("Conv", tensor, weights, *more, **attributes)

    def product(self, tensor: str, size: int = 6) -> str:
        integers = self.random.integers(-SAFE, SAFE + 1, (size, size)).astype(np.int8)
        scale = self.constant(np.full(size, 0.007, np.float32))
        zeros = self.constant(np.zeros(size, np.int8))
        weights = self.node("DequantizeLinear", self.constant(integers), scale, zeros, axis=1)
        return self.node("MatMul", tensor, weights)

    def save(self, path: Path, *outputs: str, shape: Any = IMAGES, given: Any = IMAGES) -> Path:
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, given)
        graph = helper.make_graph(self.nodes, "g", [x], values, self.tensors)
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
        return path


def concat(path: Path, place: str, zero: Any = SIGNED, pool: bool = False) -> Path:
    graph = Graph()
    x = graph.pair("x")
    parts = [graph.conv(x, CHANNELS, 0.5), graph.conv(x, CHANNELS, -0.5)]
    if place in ("before", "both"):
        parts = [graph.pair(part, zero) for part in parts]
    y = graph.node("Concat", *parts, axis=1)
    if pool:
        y = graph.node("MaxPool", y, kernel_shape=[1, 1])
    if place in ("behind", "both"):
        y = graph.pair(y, zero)
    return graph.save(path, graph.conv(y, 2 * CHANNELS, 0.1))


def tokens(path: Path, axis: int, before: bool) -> Path:
    """Write a product of rows that a Concat joins from rows of rank 2 or 3."""
    graph = Graph()
    row = graph.node("Reshape", "x", graph.constant(np.array([0, 6 * CHANNELS, 6])))
    parts = [
        graph.node("Slice", row, *(graph.constant(np.array([i])) for i in (start, start + 2, 1)))
        for start in (0, 4)
    ]
    if before:
        parts = [graph.pair(part) for part in parts]
    joined = graph.pair(graph.node("Concat", *parts, axis=axis))
    return graph.save(path, graph.product(joined, 12 if axis in (2, -1) else 6), shape=None)


def torn(path: Path, reader: str, bias: float | None = None) -> Path:
    """Write a convolution that is read several times, once by a quantizer or only in float."""
    graph = Graph()
    a = graph.conv(graph.pair("x"), CHANNELS, bias)
    if reader == "deviation":
        return graph.save(path, graph.node("Sub", a, graph.node("ReduceMean", a, axes=[1])))
    if reader == "square":
        return graph.save(path, graph.node("Mul", a, a))
    b = graph.conv(graph.pair(a), CHANNELS, 0.1)
    if reader == "output":
        return graph.save(path, b, a)
    other = a if reader == "add" else graph.node("Sigmoid", a)
    return graph.save(path, graph.node("Add", b, other))


def reduced(path: Path, zero: Any = SIGNED) -> Path:
    graph = Graph()
    x = graph.node("Relu", graph.conv(graph.pair("x"), CHANNELS, 0.1))
    x = graph.pair(graph.node("ReduceMax", x, axes=[2, 3], keepdims=0), zero)
    integers = graph.random.integers(-SAFE, SAFE + 1, (CHANNELS, CHANNELS)).astype(np.int8)
    scale = graph.constant(np.full(CHANNELS, 0.007, np.float32))
    zeros = graph.constant(np.zeros(CHANNELS, np.int8))
    weights = graph.node("DequantizeLinear", graph.constant(integers), scale, zeros, axis=0)
    return graph.save(path, graph.node("Gemm", x, weights, transB=1), shape=IMAGES[:2])


def pooled(path: Path, keepdims: int, op: str = "ReduceMean", activation: str = "") -> Path:
    """Write a convolution of a sequence, and a reduction over its length."""
    graph = Graph()
    x = graph.node("Reshape", "x", graph.constant(np.array([0, CHANNELS, 36])))
    integers = graph.random.integers(-SAFE, SAFE + 1, (CHANNELS, CHANNELS, 1)).astype(np.int8)
    scale = graph.constant(graph.random.uniform(0.004, 0.02, CHANNELS).astype(np.float32))
    zero = graph.constant(np.zeros(CHANNELS, np.int8))
    weights = graph.node("DequantizeLinear", graph.constant(integers), scale, zero, axis=0)
    y = graph.node("Conv", graph.pair(x), weights)
    if activation:
        y = graph.node(activation, y)
    y = graph.node(op, y, axes=[2], keepdims=keepdims)
    return graph.save(path, y, shape=["b", CHANNELS, 1][: 2 + keepdims])


def averaged(path: Path) -> Path:
    """Write the mean of a sequence, quantized, with a factor for each channel behind it."""
    graph = Graph()
    y = graph.pair(graph.node("ReduceMean", "x", axes=[1], keepdims=0), scale=0.01)
    values = graph.random.uniform(0.5, 1.5, 24).astype(np.float32)
    y = graph.pair(graph.node("Mul", y, graph.constant(values)), scale=0.01)
    return graph.save(path, y, given=["b", 2, 24], shape=["b", 24])


def windowed(
    path: Path,
    channels: int,
    width: int,
    *,
    rank: int = 4,
    group: int = 1,
    quantized: bool = True,
    **attributes: Any,
) -> Path:
    """Write a convolution with windows of a width, without an overlap."""
    graph = Graph()
    windows = [width] * (rank - 2)
    shape = (32, channels // group, *windows)
    integers = graph.random.integers(-SAFE, SAFE + 1, shape).astype(np.int8)
    scale = graph.constant(graph.random.uniform(0.004, 0.02, 32).astype(np.float32))
    zeros = graph.constant(np.zeros(32, np.int8))
    weights = graph.node("DequantizeLinear", graph.constant(integers), scale, zeros, axis=0)
    if not quantized:
        weights = graph.constant(graph.random.normal(size=shape).astype(np.float32))
    x = graph.pair("x") if quantized else "x"
    y = graph.node("Conv", x, weights, group=group, strides=windows, **attributes)
    given = ["b", channels, *[4 * width] * (rank - 2)]
    return graph.save(path, y, given=given, shape=["b", 32, *[4] * (rank - 2)])


def scaled(path: Path, op: str = "Mul") -> Path:
    """Write a convolution of channels, each multiplied by a constant."""
    graph = Graph()
    values = graph.random.uniform(0.5, 1.5, (1, CHANNELS, 1, 1)).astype(np.float32)
    y = graph.node(op, graph.constant(values), "x")
    return graph.save(path, graph.conv(graph.pair(y), CHANNELS))


def rescaled(path: Path, factors: tuple[int, ...], bias: bool = True) -> Path:
    """Write a product with weights, multiplied by constants of the given shape."""
    graph = Graph()
    y = graph.product(graph.pair("x"))
    if bias:
        y = graph.node("Add", y, graph.constant(graph.random.normal(size=6).astype(np.float32)))
    values = graph.random.uniform(0.5, 1.5, factors).astype(np.float32)
    return graph.save(path, graph.node("Mul", y, graph.constant(values)))


def reshaped(path: Path, activation: str = "Relu") -> Path:
    """Write a convolution with other scales for each channel, flattened, clipped and quantized."""
    graph = Graph()
    integers = graph.random.integers(-SAFE, SAFE + 1, (CHANNELS, CHANNELS, 1, 1)).astype(np.int8)
    scale = graph.constant(graph.random.uniform(0.004, 0.02, CHANNELS).astype(np.float32))
    zeros = graph.constant(np.zeros(CHANNELS, np.int8))
    weights = graph.node("DequantizeLinear", graph.constant(integers), scale, zeros, axis=0)
    y = graph.node("Conv", graph.pair("x"), weights)
    y = graph.node(activation, y) if activation else y
    y = graph.node("Reshape", y, graph.constant(np.array([0, -1])))
    y = graph.node("Clip", y, graph.constant(np.float32(0)), graph.constant(np.float32(2)))
    y = graph.pair(y, np.uint8(0), 2 / 127)
    return graph.save(path, y, shape=["b", CHANNELS * 36])


def expanded(path: Path, op: str = "Expand") -> Path:
    """Write a quantized convolution with other biases by channel, beside a repeated constant."""
    graph = Graph()
    bias = graph.random.normal(size=CHANNELS).astype(np.float32)
    y = graph.pair(graph.conv(graph.pair("x"), CHANNELS, bias))
    inputs = [graph.constant(np.ones(1, np.float32))] if op == "Expand" else []
    more = graph.node(op, *inputs, graph.node("Shape", "x", end=1))
    more = graph.node("Reshape", more, graph.constant(np.array([-1, 1, 1, 1])))
    return graph.save(path, graph.node("Add", y, more))


def normalized(path: Path) -> Path:
    """Write a normalization of a small quantized tensor, in front of a product."""
    graph = Graph()
    x = graph.pair("x", scale=1e-3)
    ones, zeros = (graph.constant(np.full(16, each, np.float32)) for each in (1, 0))
    y = graph.pair(graph.node("LayerNormalization", x, ones, zeros, axis=-1, epsilon=0.1))
    return graph.save(path, graph.product(y, 16), shape=["b", 4, 16], given=["b", 4, 16])


def build(path: Path, **options: Any) -> Any:
    spec = BuildSpec(backend="openvino", max_batch_size=4, **options)
    return build_engine(path, spec, output=path.with_suffix(".engine")).manifest


@pytest.mark.parametrize("place", ["before", "behind", "both"])
@pytest.mark.parametrize("pool", [False, True])
def test_signed_concat_is_computed_as_the_graph_says(
    tmp_path: Path, place: str, pool: bool
) -> None:
    pytest.importorskip("openvino")
    manifest = build(concat(tmp_path / "m.onnx", place, pool=pool))
    assert max(manifest.verification["differences"].values()) < 0.02
    assert manifest.precision.int8_layers == manifest.precision.weighted_layers == 3


def moved(graph: Graph, tensor: str, op: str) -> str:
    """Return a quantized tensor after an operator that changes no value but its place."""
    x = graph.pair(tensor)
    if op == "Transpose":
        return graph.node(op, x, perm=[0, 1, 3, 2])
    if op == "Reshape":
        return graph.node(op, x, graph.constant(np.array([-1, CHANNELS, 4, 9])))
    if op == "Gather":
        return graph.node(op, x, graph.constant(np.array([5, 4, 3, 2, 1, 0])), axis=2)
    if op == "Slice":
        start, end, axis = (graph.constant(np.array([each])) for each in (1, 6, 2))
        return graph.node(op, x, start, end, axis)
    if op == "Pad":
        return graph.node(op, x, graph.constant(np.array([0, 0, 1, 1, 0, 0, 0, 0])))
    if op == "Resize":
        return graph.node(op, x, "", graph.constant(np.array([1, 1, 2, 2], np.float32)))
    return graph.node(op, x, **({"kernel_shape": [3, 3]} if op == "MaxPool" else {}))


def far_concat(path: Path, op: str, join: str = "Concat") -> Path:
    """Write two convolutions of moved tensors, and an operator that joins their unsigned outputs."""
    graph, zero = Graph(), np.uint8(0)
    x = graph.conv(graph.pair("x"), CHANNELS, 0.3)
    parts = [graph.conv(moved(graph, x, op), CHANNELS, bias) for bias in (0.1, -0.1)]
    pairs = [graph.pair(graph.node("Relu", part), zero) for part in parts]
    y = graph.node(join, *pairs, **({"axis": 1} if join == "Concat" else {}))
    inputs = CHANNELS * (2 if join == "Concat" else 1)
    path = graph.save(path, graph.conv(graph.pair(y, zero), inputs, 0.1))
    model = onnx.load(path)
    model.graph.output[0].ClearField("type")
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    "op", ["Transpose", "Reshape", "Gather", "Slice", "Pad", "Resize", "MaxPool", "Relu"]
)
def test_moved_tensors_beside_a_concat_are_computed_as_the_graph_says(
    tmp_path: Path, op: str
) -> None:
    pytest.importorskip("openvino")
    manifest = build(far_concat(tmp_path / "m.onnx", op))
    assert max(manifest.verification["differences"].values()) < 0.02
    # A zero point does not pass these: the convolutions behind them run in float.
    assert manifest.precision.int8_layers == (2 if op in ("Relu", "Pad") else 4)


def test_moved_tensors_without_a_concat_remain_signed(tmp_path: Path) -> None:
    path = far_concat(tmp_path / "m.onnx", "Transpose", join="Add")
    assert sound_form(path, "vnni") == SoundForm()


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("axis", [1, 2, -1, -2])
def test_product_of_joined_rows_is_computed_as_the_graph_says(
    tmp_path: Path, axis: int, before: bool
) -> None:
    pytest.importorskip("openvino")
    manifest = build(tokens(tmp_path / "m.onnx", axis, before))
    assert max(manifest.verification["differences"].values()) < 0.02
    assert manifest.precision.int8_layers == 1


@pytest.mark.parametrize("reader", ["output", "add", "sigmoid", "deviation", "square"])
@pytest.mark.parametrize("bias", [None, 0.0])
def test_kernel_read_twice_is_computed_as_the_graph_says(
    tmp_path: Path, reader: str, bias: float | None
) -> None:
    pytest.importorskip("openvino")
    manifest = build(torn(tmp_path / "m.onnx", reader, bias))
    assert max(manifest.verification["differences"].values()) < 0.02
    assert manifest.precision.int8_layers == (1 if reader in ("deviation", "square") else 2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("factors", [(6, 1), (6, 6), (CHANNELS, 1, 6)])
def test_product_with_factors_of_rows_is_computed_as_the_graph_says(
    tmp_path: Path, factors: tuple[int, ...], bias: bool
) -> None:
    pytest.importorskip("openvino")
    manifest = build(rescaled(tmp_path / "m.onnx", factors, bias))
    assert max(manifest.verification["differences"].values()) < 0.02
    assert manifest.precision.int8_layers == 1


def test_product_with_factors_of_columns_remains(tmp_path: Path) -> None:
    assert sound_form(rescaled(tmp_path / "m.onnx", (1, 1, 6)), "vnni") == SoundForm()


@pytest.mark.parametrize("op", ["Expand", "ConstantOfShape"])
def test_bias_beside_a_broadcast_is_computed_as_the_graph_says(tmp_path: Path, op: str) -> None:
    pytest.importorskip("openvino")
    manifest = build(expanded(tmp_path / "m.onnx", op))
    assert max(manifest.verification["differences"].values()) < 0.02
    assert manifest.precision.int8_layers == 1


def test_normalization_of_small_values_is_computed_as_the_graph_says(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    manifest = build(normalized(tmp_path / "m.onnx"))
    assert max(manifest.verification["differences"].values()) < 0.02
    assert manifest.precision.int8_layers == 1


@pytest.mark.parametrize("activation", ["Relu", ""])
def test_reshaped_convolution_is_computed_as_the_graph_says(
    tmp_path: Path, activation: str
) -> None:
    pytest.importorskip("openvino")
    manifest = build(reshaped(tmp_path / "m.onnx", activation))
    assert max(manifest.verification["differences"].values()) < 0.02
    assert manifest.precision.int8_layers == 1


def test_reshaped_activation_remains(tmp_path: Path) -> None:
    assert sound_form(reshaped(tmp_path / "m.onnx", "Sigmoid"), "vnni") == SoundForm()


@pytest.mark.parametrize("zero", [SIGNED, np.uint8(0)])
def test_global_maximum_is_computed_as_the_graph_says(tmp_path: Path, zero: Any) -> None:
    pytest.importorskip("openvino")
    manifest = build(reduced(tmp_path / "m.onnx", zero))
    assert max(manifest.verification["differences"].values()) < 0.02
    assert manifest.precision.int8_layers == manifest.precision.weighted_layers == 2


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax"])
def test_reduced_convolution_is_computed_as_the_graph_says(
    tmp_path: Path, op: str, keepdims: int
) -> None:
    pytest.importorskip("openvino")
    manifest = build(pooled(tmp_path / "m.onnx", keepdims, op))
    assert max(manifest.verification["differences"].values()) < 0.02
    assert manifest.precision.int8_layers == 1


@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_constants_as_first_input_are_computed_as_the_graph_says(tmp_path: Path, op: str) -> None:
    pytest.importorskip("openvino")
    manifest = build(scaled(tmp_path / "m.onnx", op))
    assert max(manifest.verification["differences"].values()) < 0.02


@pytest.mark.parametrize(
    ("channels", "width", "more"),
    [
        (32, 4, {}),
        (16, 8, {}),
        (32, 8, {"group": 2}),
        (16, 16, {"rank": 3}),
        (24, 8, {"dilations": [2, 2], "pads": [4, 4, 3, 3]}),
        (160, 1, {"group": 2}),
        (400, 1, {"group": 4, "rank": 3}),
    ],
)
def test_wide_windows_are_computed_as_the_graph_says(
    tmp_path: Path, channels: int, width: int, more: dict[str, Any]
) -> None:
    pytest.importorskip("openvino")
    path = windowed(tmp_path / "m.onnx", channels, width, **more)
    manifest = build(path)
    assert max(manifest.verification["differences"].values()) < 0.02
    assert manifest.precision.int8_layers == 1
    model = onnx.load_from_string(sound_form(path, "vnni").data or b"")
    (conv,) = (node for node in model.graph.node if node.op_type == "Conv")
    (pads,) = (list(each.ints) for each in conv.attribute if each.name == "pads")
    given = more.get("pads", [0] * len(pads))
    assert pads == [*given[:-1], given[-1] + more.get("dilations", [1])[-1]]


@pytest.mark.parametrize(("channels", "width"), [(8, 8), (12, 8), (16, 8)])
def test_wide_windows_in_bf16_are_computed_as_the_graph_says(
    tmp_path: Path, channels: int, width: int
) -> None:
    pytest.importorskip("openvino")
    path = windowed(tmp_path / "m.onnx", channels, width, quantized=False)
    assert sound_form(path, "vnni") == SoundForm()
    assert sound_form(path, "vnni", "bf16") != SoundForm()
    if "bf16" not in openvino_backend.float_hints():
        pytest.skip("this CPU does not compute in BF16")
    manifest = build(path, float_precision="bf16")
    assert max(manifest.verification["differences"].values()) < 0.02


@pytest.mark.parametrize(
    ("channels", "width", "group"),
    [
        *[(16, 4, 1), (16, 5, 1), (64, 4, 1), (3, 16, 1)],
        *[(160, 1, 1), (128, 1, 2), (132, 1, 2), (120, 1, 2), (160, 2, 2)],
    ],
)
def test_other_windows_remain(tmp_path: Path, channels: int, width: int, group: int) -> None:
    path = windowed(tmp_path / "m.onnx", channels, width, group=group)
    assert sound_form(path, "vnni") == SoundForm()


def test_factors_behind_a_mean_are_computed_as_the_graph_says(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    manifest = build(averaged(tmp_path / "m.onnx"))
    assert max(manifest.verification["differences"].values()) < 0.02


def test_reduction_of_integers_remains(tmp_path: Path) -> None:
    graph = Graph()
    sizes = graph.node("ReduceMax", graph.node("Shape", "x"), axes=[0], keepdims=1)
    factor = graph.node("Cast", sizes, to=TensorProto.FLOAT)
    y = graph.conv(graph.pair(graph.node("Mul", "x", factor)), CHANNELS)
    assert sound_form(graph.save(tmp_path / "m.onnx", y), "vnni") == SoundForm()


def test_mean_behind_an_activation_remains(tmp_path: Path) -> None:
    assert sound_form(pooled(tmp_path / "m.onnx", 1, activation="Relu"), "vnni") == SoundForm()


def kernels_use_amx() -> bool:
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "AMX")
    return "amx_int8" in cpu_device()["flags"] and "AMX" in limit.upper()


FORMS = {
    "concat": lambda path: concat(path, "before"),
    "torn": lambda path: torn(path, "add"),
    "reduced": reduced,
    "windowed": lambda path: windowed(path, 32, 4),
    "scaled": scaled,
    "averaged": averaged,
    "pooled": lambda path: pooled(path, 1),
    "rescaled": lambda path: rescaled(path, (6, 1)),
    "reshaped": reshaped,
    "expanded": expanded,
    "normalized": normalized,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_forms_are_needed(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    openvino = pytest.importorskip("openvino")
    if not openvino.get_version().startswith(WRONG_IN):
        pytest.skip(f"known of OpenVINO {WRONG_IN}; this is {openvino.get_version()}")
    if form in ("concat", "windowed") and kernels_use_amx() != (form == "windowed"):
        pytest.skip("kernels for AMX and others have different faults")
    monkeypatch.setattr(openvino_backend, "sound_form", lambda *_: SoundForm())
    monkeypatch.setattr(openvino_backend, "make_sound", lambda _: None)
    written = FORMS[form](tmp_path / "m.onnx")
    with pytest.raises(EngineBuildError, match="does not answer as its ONNX graph does"):
        build(written)


def test_sound_form_leaves_other_graphs_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    assert sound_form(concat(path, "before", zero=np.uint8(0)), "vnni") == SoundForm()
    assert sound_form(concat(path, "behind", zero=np.uint8(0)), "vnni") == SoundForm()
    assert sound_form(concat(path, "none"), "avx2") == SoundForm()
    assert sound_form(torn(path, "add", bias=0.5), "vnni") == SoundForm()
    graph = Graph()
    assert (
        sound_form(graph.save(path, graph.conv(graph.pair("x"), CHANNELS)), "vnni") == SoundForm()
    )


def test_sound_form_gives_the_same_answers(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    x = np.random.default_rng(1).normal(size=(2, CHANNELS, 6, 6)).astype(np.float32)
    for path in (
        *(concat(tmp_path / "a.onnx", "both"), torn(tmp_path / "b.onnx", "output")),
        *(reduced(tmp_path / "c.onnx"), concat(tmp_path / "d.onnx", "both", zero=np.uint8(0))),
        joined(tmp_path / "e.onnx", returned=False),
    ):
        changed = sound_form(path, "vnni").data
        assert changed is not None
        onnx.checker.check_model(changed)
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        answers = []
        for source in (str(path), changed):
            session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
            answers.append(session.run(None, {"x": x}))
        for before, after in zip(*answers, strict=True):
            np.testing.assert_array_equal(before, after)


def joined(path: Path, *, returned: bool, scale: float = 0.03) -> Path:
    """Write a Concat of a moved and a split tensor of one scale, and of another Concat."""
    graph = Graph()
    x = graph.pair(graph.conv(graph.pair("x"), CHANNELS, 0.5), np.uint8(0))
    pooled = graph.node("MaxPool", x, kernel_shape=[1, 1])
    inner = graph.pair(graph.node("Concat", x, pooled, axis=1), np.uint8(0))
    other = graph.pair(graph.conv(inner, 2 * CHANNELS, 0.1), np.uint8(0), scale)
    y = graph.pair(graph.node("Concat", inner, other, axis=1), np.uint8(0))
    answer = graph.conv(y, 3 * CHANNELS, 0.1)
    return graph.save(path, answer, *([y] if returned else []))


def quantizers(data: Any) -> int:
    model = onnx.load_model_from_string(data)
    return sum(node.op_type == "QuantizeLinear" for node in model.graph.node)


def test_repeated_pairs_behind_a_concat_are_left_out(tmp_path: Path) -> None:
    path = joined(tmp_path / "m.onnx", returned=False)
    assert quantizers(path.read_bytes()) - quantizers(sound_form(path, "vnni").data) == 2
    build(path)
    returned = joined(tmp_path / "returned.onnx", returned=True)
    assert quantizers(returned.read_bytes()) - quantizers(sound_form(returned, "vnni").data) == 1
    coarser = joined(tmp_path / "coarser.onnx", returned=False, scale=0.1)
    assert quantizers(coarser.read_bytes()) - quantizers(sound_form(coarser, "vnni").data) == 1


@pytest.mark.parametrize("zeros", [1, CHANNELS])
def test_pairs_that_change_the_scale_are_kept(tmp_path: Path, zeros: int) -> None:
    graph = Graph()
    x = graph.pair(graph.conv(graph.pair("x"), CHANNELS, 0.5), np.uint8(0))
    y = graph.node("Concat", x, x, axis=1)
    steps = [graph.constant(np.float32(step)) for step in (0.03, 0.06)]
    zero = graph.constant(np.zeros((zeros,) if zeros > 1 else (), np.uint8))
    integers = graph.node("QuantizeLinear", y, steps[0], zero)
    y = graph.node("DequantizeLinear", integers, steps[1], zero)
    path = graph.save(tmp_path / "m.onnx", graph.conv(y, 2 * CHANNELS, 0.1))
    assert sound_form(path, "vnni") == SoundForm()


def test_sound_form_reads_weights_from_other_files(tmp_path: Path) -> None:
    path = concat(tmp_path / "m.onnx", "both")
    whole = sound_form(path, "vnni").data
    model = onnx.load(path)
    onnx.save_model(
        model, path, save_as_external_data=True, location="weights.bin", size_threshold=16
    )
    assert (tmp_path / "weights.bin").is_file()
    outside = sound_form(path, "vnni").data
    assert outside is not None
    assert whole is not None
    arrays = []
    for data in (whole, outside):
        tensors = onnx.load_model_from_string(data).graph.initializer
        arrays.append({tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in tensors})
    assert arrays[0] == arrays[1]


@pytest.mark.matrix
def test_signed_integers_in_front_of_an_unsqueeze_are_shifted(tmp_path: Path) -> None:
    """A one-dimensional convolution with a quantized input and an output in floating point."""
    keras = pytest.importorskip("keras")
    layers = keras.layers
    keras.utils.set_random_seed(0)
    inputs = keras.Input((16, 4), name="x")
    line = layers.Conv1D(8, 3, padding="same", use_bias=False)(inputs)
    line = layers.ReLU()(layers.BatchNormalization()(line))
    network = keras.Model(inputs, layers.Dense(3, name="y")(layers.LSTM(4)(line)))
    quantized = qat_lib.quantize_model(network, custom_qdq_cases="auto")
    data = np.random.default_rng(0).normal(size=(4, 16, 4)).astype(np.float32)
    qat_lib.calibrate(quantized, data)
    path = tmp_path / "line.onnx"
    qat_lib.export_onnx(quantized, path, target="openvino")
    spec = BuildSpec(backend="openvino", max_batch_size=2)
    verification = build_engine(path, spec).manifest.verification
    assert verification is not None
    assert verification["differences"]["y"] < verification["bound"]


def test_strided_windows_of_one_element_are_selected_before(tmp_path: Path) -> None:
    """Without VNNI, two threads answered wrongly at random."""
    graph = Graph()
    x = graph.pair(graph.conv(graph.pair("x"), CHANNELS, 0.1))
    path = graph.save(tmp_path / "m.onnx", graph.pair(graph.conv(x, CHANNELS, 0.1, strides=[2, 2])))
    model = onnx.load(path)
    for axis in (2, 3):
        model.graph.output[0].type.tensor_type.shape.dim[axis].dim_value = 3
    onnx.save(model, path)
    assert sound_form(path, "vnni").data is None
    data = sound_form(path, "avx2").data
    assert data is not None
    (pool,) = [
        node for node in onnx.load_model_from_string(data).graph.node if node.op_type == "MaxPool"
    ]
    assert {a.name: list(a.ints) for a in pool.attribute} == {
        "kernel_shape": [1, 1],
        "strides": [2, 2],
    }
    (tmp_path / "sound.onnx").write_bytes(data)
    images = np.random.default_rng(0).normal(size=(4, CHANNELS, 6, 6)).astype(np.float32)
    (expected,) = reference_session(path).run(None, {"x": images})
    (same,) = reference_session(tmp_path / "sound.onnx").run(None, {"x": images})
    np.testing.assert_array_equal(same, expected)


@pytest.mark.parametrize("weights", ["int8", "qdq"])
def test_threads_answer_a_residual_network_alike(weights: WeightForm, tmp_path: Path) -> None:
    """Its shortcut has strides: without VNNI, two threads answered wrongly at random."""
    path = tmp_path / "m.onnx"
    write_network(path, ResidualNetwork(seed=1), "int8", weights=weights)
    images = np.random.default_rng(4).normal(size=(4, 1, 8, 8)).astype(np.float32)
    (expected,) = reference_session(path).run(None, {"input": images})
    spec = BuildSpec(backend="openvino", max_batch_size=4, threads=2)
    artifact = build_engine(path, spec, output=tmp_path / "m.engine", verify=False)
    with load_engine(artifact.path) as engine:
        answers = [next(iter(engine.infer(images).values())) for _ in range(500)]
    largest = max(np.abs(answer - expected).max() for answer in answers)
    assert largest <= 0.01 * expected.std()
