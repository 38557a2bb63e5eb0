"""PyTorch export with every option, and parity with the module."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional

import qat_lib
from qat_lib.errors import ExportError, UnsupportedModelError
from qat_lib.export.options import ExportOptions
from qat_lib.onnx_view.metadata import read_metadata
from qat_lib.preprocessing import Preprocessing
from qat_lib.torch import (
    QuantDescriptor,
    TensorQuantizer,
    calibrate,
    check_parity,
    export_onnx,
    plan_quantization,
    quantize_model,
)
from qat_lib.torch.nn import QuantLSTM

SHAPE = (3, 12, 12)


class QuantizedConv(nn.Conv2d):
    """A user-written convolution whose weight has a quantizer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weight_quantizer = TensorQuantizer(
            QuantDescriptor(axis=0, narrow_range=True, range_policy="current")
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight_quantizer(self.weight)
        return self._conv_forward(x, weight, self.bias)


class Network(nn.Module):
    """Quantized convolutions with normalizations, a residual sum, a pool and a classifier."""

    def __init__(self, *, unsigned: bool = False) -> None:
        super().__init__()
        self.image_quantizer = TensorQuantizer(QuantDescriptor(amax=2.0, name="image_q"))
        self.stem = QuantizedConv(3, 8, 3, stride=2, padding=1, bias=False)
        self.stem_bn = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.relu_quantizer = TensorQuantizer(QuantDescriptor(amax=3.0, unsigned=unsigned))
        self.body = nn.Sequential(QuantizedConv(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.body_quantizer = TensorQuantizer(QuantDescriptor(amax=3.0))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem_bn(self.stem(self.image_quantizer(image)))
        skip = self.relu_quantizer(self.relu(x))
        x = functional.relu(self.body(skip) + skip)
        return self.classifier(self.pool(self.body_quantizer(x)).flatten(1))


def stirred(module: nn.Module) -> nn.Module:
    """Give normalizations statistics of their own, with negative and zero gammas."""
    rng = torch.Generator().manual_seed(4)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            size = part.num_features
            part.running_mean = 0.2 * torch.randn(size, generator=rng)
            part.running_var = 0.5 + torch.rand(size, generator=rng)
            with torch.no_grad():
                part.weight.copy_(0.5 + torch.rand(size, generator=rng))
                part.weight[::2] *= -1
                part.weight[1] = 0
    return module


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return stirred(Network())


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(3).uniform(-1.5, 1.5, (24, *SHAPE)).astype(np.float32)


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def answers(module: nn.Module, *arrays: np.ndarray) -> Any:
    with torch.no_grad():
        return module.eval()(*map(torch.from_numpy, arrays))


class Several(nn.Module):
    """Two inputs and a dict of outputs, one of them nested."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, Any]:
        return {"sum": left + right, "parts": (left.relu(), {"right": right.sigmoid()})}


FLOAT_MODULES: dict[str, Any] = {
    "convolutions": lambda: nn.Sequential(
        *(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU6()),
        *(nn.ZeroPad2d((1, 2, 0, 1)), nn.Conv2d(4, 8, 3, groups=4, stride=2), nn.Mish()),
        *(nn.ConvTranspose2d(8, 4, 2, stride=2), nn.BatchNorm2d(4), nn.LeakyReLU(0.1)),
    ),
    "pools": lambda: nn.Sequential(
        *(nn.Upsample(scale_factor=2, mode="nearest"), nn.MaxPool2d(3, 2, 1)),
        *(nn.Upsample(scale_factor=2, mode="bilinear"), nn.AvgPool2d(2, padding=1)),
        *(nn.Flatten(), nn.Linear(3 * 13 * 13, 7), nn.GELU(), nn.Softmax(dim=1)),
    ),
    "parts": lambda: Split(),
}


class Split(nn.Module):
    """Parts of unequal size, reductions over several axes, and a concatenation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=1)
        left, right = first.split([5, 7], dim=3)
        spread = torch.cat([left.amax((2, 3)), second.mean((2, 3))], dim=1)
        return spread - x.sum((2, 3)) + x.std((2, 3)) + right.amin((1, 2, 3))[:, None]


@pytest.mark.matrix_except("convolutions-13", "parts-21")
@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("name", FLOAT_MODULES)
def test_export_gives_the_modules_answers(
    name: str, opset: int, export: Any, run_onnx: Any, images: np.ndarray
) -> None:
    torch.manual_seed(0)
    module = stirred(FLOAT_MODULES[name]())
    path = export(module, torch.zeros(1, *SHAPE), opset=opset)
    (received,) = run_onnx(path, images)
    expected = answers(module, images).numpy()
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5)
    assert onnx.load(path).opset_import[0].version == opset


def test_export_writes_the_modules_own_int8_weights(
    network: nn.Module, export: Any, images: np.ndarray
) -> None:
    path = export(network, torch.zeros(1, *SHAPE))
    stored = {}
    for tensor in onnx.load(path).graph.initializer:
        stored[tensor.name] = numpy_helper.to_array(tensor)
    for layer, norm in ((network.stem, network.stem_bn), (network.body[0], network.body[1])):
        weight = layer.weight.detach().numpy()
        scale = np.abs(weight).max((1, 2, 3), keepdims=True) / np.float32(127)
        integers = np.clip(np.rint(weight / scale), -127, 127).astype(np.int8)
        sign = np.sign(norm.weight.detach().numpy()).astype(np.int8)
        integers *= sign[:, None, None, None]
        matching = [x for x in stored.values() if x.dtype == np.int8 and x.shape == integers.shape]
        assert any(np.array_equal(x, integers) for x in matching)


def test_export_of_a_quantized_module_is_canonical(
    network: nn.Module, export: Any, images: np.ndarray
) -> None:
    path = export(network, torch.zeros(1, *SHAPE))
    assert operators(path) == {
        "QuantizeLinear": 3,
        "DequantizeLinear": 5,
        "Conv": 2,
        "Relu": 2,
        "Add": 1,
        "GlobalAveragePool": 1,
        "Reshape": 1,
        "Gemm": 1,
    }
    assert qat_lib.verify_onnx(path) == []
    report = check_parity(network, path, images, layers=True)
    assert report.passed, report
    assert report.framework == "PyTorch"
    # One integer may fall to the other side of its edge; the scale of the widest is 3 / 127.
    assert report.largest_difference <= 3 / 127
    assert report.mean_difference < 1e-4
    assert {layer.layer for layer in report.layers} >= {"relu", "classifier"}


@pytest.mark.matrix_except("options0", "options4")
@pytest.mark.parametrize(
    "options",
    [
        {"weights": "qdq"},
        {"opset": 13},
        {"opset": 21},
        {"batch_size": 4},
        {"target": "openvino"},
        {"target": "onnxruntime"},
    ],
)
def test_export_options_give_the_same_answers(
    options: dict[str, Any], network: nn.Module, export: Any, images: np.ndarray
) -> None:
    path = export(network, torch.zeros(1, *SHAPE), **options)
    assert qat_lib.verify_onnx(path) == []
    report = check_parity(network, path, images)
    assert report.passed, report
    assert report.mean_difference < 1e-4
    batch = onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0]
    assert (batch.dim_value or batch.dim_param) == options.get("batch_size", "batch")


def test_half_precision_export_agrees_within_rounding(
    network: nn.Module, export: Any, images: np.ndarray
) -> None:
    path = export(network, torch.zeros(1, *SHAPE), float_precision="fp16")
    assert onnx.load(path).opset_import[0].version == 19
    report = check_parity(network, path, images)
    assert report.passed, report
    assert report.largest_difference < 0.05 * report.magnitude


def test_export_of_unsigned_quantizers_is_for_openvino(
    export: Any, images: np.ndarray, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = stirred(Network(unsigned=True))
    with pytest.raises(ExportError, match="TensorRT runs no unsigned integers"):
        export(module, torch.zeros(1, *SHAPE))
    path = export(module, torch.zeros(1, *SHAPE), target="openvino")
    assert check_parity(module, path, images).passed
    zero_points = [x for x in onnx.load(path).graph.initializer if x.data_type == 2]
    assert zero_points


def test_export_records_modules_quantizers_and_layout(network: nn.Module, export: Any) -> None:
    path = export(network, torch.zeros(1, *SHAPE), metadata={"classes": ["a", "b"]})
    metadata = read_metadata(onnx.load(path))
    assert json.loads(metadata["layout"]) == {"image": "NCHW"}
    assert json.loads(metadata["classes"]) == ["a", "b"]
    names = {node.name for node in onnx.load(path).graph.node}
    assert {"stem/Conv", "body.0/Conv", "relu/Relu", "image_q/QuantizeLinear"} <= names
    trace = qat_lib.trace_tensor("relu", path)
    assert [quantizer.name for quantizer in trace.quantizers] == ["relu_quantizer"]
    trace = qat_lib.trace_tensor("stem", path)
    assert [quantizer.name for quantizer in trace.quantizers] == ["stem.weight_quantizer"]
    assert trace.quantizers[0].readers[0].name == "stem/Conv"


def test_export_says_nothing_of_the_machine(network: nn.Module, export: Any) -> None:
    proto = onnx.load(export(network, torch.zeros(1, *SHAPE)))
    assert {entry.key.partition(".")[0] for entry in proto.metadata_props} == {"qatline"}
    assert b".py" not in proto.SerializeToString()


def test_export_of_quantized_module_runs_in_int8(network: nn.Module, export: Any) -> None:
    report = qat_lib.analyze_onnx(export(network, torch.zeros(1, *SHAPE)))
    precisions = {layer.name: layer.precision for layer in report.layers}
    assert precisions["stem/Conv"] == precisions["body.0/Conv"] == "int8"


@pytest.mark.matrix
def test_export_feeds_an_engine(network: nn.Module, export: Any, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = export(network, torch.zeros(1, *SHAPE), target="openvino")
    spec = qat_lib.BuildSpec(backend="openvino")
    artifact = qat_lib.build_engine(path, spec, output=tmp_path / "network.engine")
    assert artifact.manifest.backend == "openvino"
    layers = {layer.keras_layer for layer in artifact.layers}
    assert "stem" in layers


def test_export_leaves_the_module_as_it_is(network: nn.Module, export: Any) -> None:
    network.train()
    network.body.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    export(network, torch.zeros(1, *SHAPE))
    assert network.training
    assert not network.body.training
    assert network.relu_quantizer.name == ""
    after = network.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_export_computes_in_float32(dtype: torch.dtype, export: Any, run_onnx: Any) -> None:
    torch.manual_seed(0)
    module = nn.Linear(4, 3).to(dtype)
    path = export(module, torch.zeros(2, 4, dtype=dtype))
    assert module.weight.dtype == dtype
    x = np.float32([[1, 2, 3, 4]])
    expected = x @ module.weight.detach().float().numpy().T + module.bias.detach().float().numpy()
    np.testing.assert_allclose(run_onnx(path, x)[0], expected, rtol=1e-6)
    assert check_parity(module, path, x).passed


def test_export_names_inputs_and_outputs(export: Any, run_onnx: Any) -> None:
    left, right = np.float32([[1, -2], [3, 4]]), np.float32([[0, 1], [1, 0]])
    example = {"right": torch.zeros(1, 2), "left": torch.zeros(1, 2)}
    path = export(Several(), example)
    proto = onnx.load(path)
    assert [value.name for value in proto.graph.input] == ["left", "right"]
    names = [value.name for value in proto.graph.output]
    assert names == ["sum", "parts_0", "parts_1_right"]
    total, relu, sigmoid = run_onnx(path, left, right)
    np.testing.assert_array_equal(total, left + right)
    np.testing.assert_array_equal(relu, np.maximum(left, 0))
    np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-right)), rtol=1e-6)
    assert check_parity(Several(), path, {"right": right, "left": left}).passed
    assert check_parity(Several(), path, [left, right]).passed


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.dense = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(x + self.conv(x))
        return self.dense(x.mean((2, 3)))


@pytest.mark.matrix
def test_export_names_functions_as_plans_do(export: Any) -> None:
    example = torch.ones(1, *SHAPE)
    expected = {"conv/Conv", "add/Add", "relu/Relu", "mean/GlobalAveragePool", "dense/Gemm"}
    names = {node.name for node in onnx.load(export(Residual(), example)).graph.node}
    assert expected <= names
    plan = plan_quantization(Residual(), custom_qdq_cases="auto", example_input=example)
    quantized = quantize_model(Residual(), custom_qdq_cases="auto", example_input=example)
    calibrate(quantized, [example], method="max")
    path = export(quantized, example, "quantized.onnx", plan=plan)
    assert expected <= {node.name for node in onnx.load(path).graph.node}
    assert qat_lib.verify_onnx(path, plan) == []
    for entry in plan.quantizers:
        trace = qat_lib.trace_tensor(entry.tensor, path, plan)
        assert trace.keras_layers == (entry.layer,)
        assert trace.quantizers[0].nodes


class AsksForTypes(nn.Module):
    """A forward that does other things while torch.fx traces it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() if isinstance(x, torch.Tensor) else x.sigmoid()


def test_export_trusts_no_trace_that_answers_otherwise(export: Any, run_onnx: Any) -> None:
    x = np.float32([[-1, 2]])
    (received,) = run_onnx(export(AsksForTypes(), torch.zeros(1, 2)), x)
    assert received.tolist() == [[0, 2]]


class WindowAttention(nn.Module):
    """Attention within windows of 2 x 2 elements, with relative positions, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.positions = nn.Parameter(torch.randn(1, 2, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = x.view(-1, 4, 2, 4, 2, 8).transpose(2, 3).reshape(-1, 2, 2, 8)
        heads = self.qkv(windows).view(windows.shape[0], 4, 2, 12).transpose(1, 2)
        # Computed without gradients: a parameter as the mask excludes the fused kernels.
        y = functional.scaled_dot_product_attention(
            *heads.chunk(3, dim=3), attn_mask=2 * self.positions
        )
        return y.transpose(1, 2).reshape(*windows.shape[:3], 8)


def test_export_takes_attention_within_windows(export: Any, run_onnx: Any) -> None:
    torch.manual_seed(0)
    module, x = WindowAttention().eval(), torch.randn(3, 8, 8, 8)
    (received,) = run_onnx(export(module, x[:2]), x.numpy())
    np.testing.assert_allclose(received, module(x).detach().numpy(), atol=1e-5)


class AttentionOfWindows(nn.Module):
    """Attention of windows beside the heads, with or without a mask for each window."""

    def __init__(self, mask: tuple[int, ...] | None) -> None:
        super().__init__()
        self.mask = None if mask is None else nn.Parameter(torch.randn(mask))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x + 1, x - 1, self.mask)


@pytest.mark.parametrize(
    ("shape", "mask"),
    [
        ((3, 4, 8), None),
        ((5, 2, 3, 4, 8), None),
        ((5, 2, 3, 4, 8), (3, 4, 4)),
        ((5, 2, 3, 4, 8), (2, 3, 4, 4)),
        ((5, 2, 3, 4, 8), (1, 2, 3, 4, 4)),
    ],
)
def test_export_takes_attention_of_any_rank(
    shape: tuple[int, ...], mask: tuple[int, ...] | None, export: Any, run_onnx: Any
) -> None:
    torch.manual_seed(0)
    module, x = AttentionOfWindows(mask), torch.randn(shape)
    (received,) = run_onnx(export(module, x[:2]), x.numpy())
    np.testing.assert_allclose(received, module(x).detach().numpy(), atol=1e-5)


@pytest.mark.matrix
def test_recurrent_export_leaves_batch_open(export: Any) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = QuantLSTM(4, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0][:, -1]

    torch.manual_seed(0)
    module, x = Last(), torch.randn(7, 5, 4)
    calibrate(module, [x], method="max")
    path = export(module, x[:1])
    report = check_parity(module, path, x.numpy())
    assert report.passed
    assert report.mean_difference < 1e-5


def test_export_names_constants_apart_from_operations(export: Any, run_onnx: Any) -> None:
    class Centred(nn.Module):
        """As DAT: a constant with the name of an operation."""

        def __init__(self) -> None:
            super().__init__()
            self.mean = torch.full((1, 3), 2.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = self.mean.type_as(x)
            return (x - self.mean).mean(1)

    x = torch.randn(2, 3)
    path = export(Centred(), x)
    np.testing.assert_allclose(run_onnx(path, x.numpy())[0], Centred()(x), atol=1e-6)


def test_export_writes_one_chunk_as_its_tensor(export: Any, run_onnx: Any) -> None:
    class Chunked(nn.Module):
        """As pytorch-tabnet's normalization, whose batches are smaller than a chunk."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([chunk.relu() for chunk in (x * 2).chunk(1)])

    path = export(Chunked(), torch.randn(2, 3))
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(run_onnx(path, x)[0], np.maximum(2 * x, 0))


def test_export_names_output_apart_from_input(export: Any) -> None:
    class Same(nn.Module):
        def forward(self, output: torch.Tensor) -> torch.Tensor:
            return output.relu()

    graph = onnx.load(export(Same(), torch.zeros(1, 2))).graph
    assert [graph.input[0].name, graph.output[0].name] == ["output", "output_output"]


@pytest.mark.parametrize("channels", [1, 3])
def test_export_puts_the_preprocessing_into_the_graph(
    channels: int, export: Any, run_onnx: Any
) -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(channels, 4, 3)
    preprocessing = Preprocessing(
        image_shape=(6, 5, channels),
        mean=(0.2, 0.3, 0.4)[:channels],
        std=(0.5, 0.6, 0.7)[:channels],
    )
    path = export(
        module,
        torch.zeros(1, channels, 6, 5),
        preprocessing=preprocessing,
        embed_preprocessing=True,
    )
    raw = np.random.default_rng(0).integers(0, 256, (4, 6, 5, channels)).astype(np.uint8)
    images = np.ascontiguousarray(raw.transpose(0, 3, 1, 2))
    prepared = np.ascontiguousarray(preprocessing.apply(raw).transpose(0, 3, 1, 2))
    expected = answers(module, prepared).numpy()
    np.testing.assert_allclose(run_onnx(path, images)[0], expected, rtol=1e-5, atol=1e-5)
    assert check_parity(module, path, images).passed


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class Fixed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, -1)


@pytest.mark.parametrize(
    ("make", "example", "options", "error", "message"),
    [
        (lambda: 3, torch.zeros(1, 2), {}, UnsupportedModelError, "torch.nn.Module. Received: int"),
        (nn.ReLU, None, {}, ExportError, "Expected example_input"),
        (nn.ReLU, torch.zeros(0, 2), {}, ExportError, "Expected example_input"),
        (nn.ReLU, (torch.zeros(1, 2),) * 2, {}, ExportError, "fit forward"),
        (nn.ReLU, torch.zeros(1, 2), {"opset": 12}, ExportError, "opset from 13 to 21"),
        (nn.ReLU, torch.zeros(1, 2), {"batch_size": 0}, ExportError, "batch size from 1"),
        (Branching, torch.zeros(1, 2), {}, ExportError, "without control flow"),
        (Fixed, torch.zeros(1, 2), {}, ExportError, "fixed batch with batch_size=<n>"),
        (nn.Hardswish, torch.zeros(1, 2), {"opset": 13}, ExportError, "needs HardSwish"),
        (
            lambda: nn.LayerNorm(2),
            torch.zeros(1, 2),
            {"opset": 16},
            ExportError,
            "needs LayerNormalization",
        ),
        (
            nn.ReLU,
            torch.zeros(1, 2),
            {"options": ExportOptions(channels_first_input=True)},
            ExportError,
            "channels first already",
        ),
        (
            nn.ReLU,
            torch.zeros(1, 2),
            {"options": ExportOptions(), "opset": 18},
            ExportError,
            "one value or as keywords",
        ),
        (
            lambda: TensorQuantizer(QuantDescriptor(name="q")),
            torch.zeros(1, 2),
            {},
            ExportError,
            "range for the quantizer 'q'",
        ),
        (
            lambda: TensorQuantizer(QuantDescriptor(num_bits=4, amax=1.0)),
            torch.zeros(1, 2),
            {},
            ExportError,
            "quantizers of 8 bits",
        ),
    ],
)
def test_export_says_what_it_can_not_do(
    make: Any, example: Any, options: Any, error: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        export_onnx(make(), tmp_path / "no.onnx", example_input=example, **options)
    assert list(tmp_path.iterdir()) == []


def test_export_takes_module_of_fixed_batch(export: Any, run_onnx: Any) -> None:
    path = export(Fixed(), torch.zeros(1, 3, 2), batch_size=2)
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    np.testing.assert_array_equal(run_onnx(path, x)[0], x.reshape(2, 6))


def test_export_says_what_pytorch_can_not_convert(tmp_path: Path) -> None:
    class Unknown(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvalsh(x)

    with pytest.raises(ExportError, match=r"torch\.onnx could not convert the module"):
        export_onnx(Unknown(), tmp_path / "no.onnx", example_input=torch.eye(3)[None])
