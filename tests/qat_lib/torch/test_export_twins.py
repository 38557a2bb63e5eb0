"""Same network in PyTorch and Keras: same graph, ranges and verdicts.

One export serves both.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import qat_lib
import qat_lib.torch
from qat_lib.torch.models import load_weights, mobilenet_v2, resnet20_cifar10

WEIGHTS = Path(__file__).parents[4] / "shared" / "data" / "mobilenetv2_imagenet.npz"

IMAGES = np.random.default_rng(1).normal(size=(16, 3, 32, 32)).astype(np.float32)


def torch_file(folder: Path) -> tuple[Any, Any, Path]:
    """Return the quantized module, its plan and its file.

    The weights lie beside the file.
    """
    torch.manual_seed(0)
    module = resnet20_cifar10()
    random = torch.Generator().manual_seed(2)
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            with torch.no_grad():
                part.weight.copy_(torch.randn(part.num_features, generator=random))
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    np.savez(folder / "weights.npz", **state)
    example = torch.zeros(1, 3, 32, 32)
    plan = qat_lib.torch.plan_quantization(module, custom_qdq_cases="auto", example_input=example)
    quantized = qat_lib.torch.apply_plan(module, plan, example_input=example)
    qat_lib.torch.calibrate(quantized, [torch.from_numpy(IMAGES)], method="max")
    path = folder / "torch.onnx"
    qat_lib.torch.export_onnx(quantized, path, example_input=example, plan=plan)
    return quantized, plan, path


def keras_file(folder: Path) -> Path:
    """Return the file of the Keras twin with the same weights."""
    from qat_lib.models import resnet20_cifar10 as keras_resnet20
    from qat_lib.models.weights import load_weights

    model = keras_resnet20()
    load_weights(model, folder / "weights.npz")
    quantized = qat_lib.quantize_model(model, custom_qdq_cases="auto")
    qat_lib.calibrate(quantized, IMAGES.transpose(0, 2, 3, 1), method="max")
    path = folder / "keras.onnx"
    qat_lib.export_onnx(quantized, path, channels_first_input=True)
    return path


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("keras")
    folder = tmp_path_factory.mktemp("twins")
    return *torch_file(folder), keras_file(folder)


def integers(path: Path) -> list[np.ndarray]:
    """Return a file's INT8 weights in node order."""
    graph = onnx.load(path).graph
    arrays = {x.name: numpy_helper.to_array(x) for x in graph.initializer}
    dequantized = [node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"]
    return [arrays[name] for name in dequantized if name in arrays]


def activation_scales(path: Path) -> np.ndarray:
    found = []
    graph = onnx.load(path).graph
    arrays = {x.name: numpy_helper.to_array(x) for x in graph.initializer}
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            found.append(arrays[node.input[1]])
    return np.asarray(found)


@pytest.mark.matrix
def test_twins_have_the_same_operators(twins: Any) -> None:
    _, _, ours, keras = twins
    found, expected = (
        Counter(node.op_type for node in onnx.load(path).graph.node) for path in (ours, keras)
    )
    assert found.pop("Reshape") == expected.pop("Flatten") == 1
    assert found == expected


def check_numbers(ours: Path, keras: Path, weights: int) -> None:
    """Require the same INT8 weights and the same ranges."""
    found, expected = integers(ours), integers(keras)
    assert len(found) == len(expected) == weights
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y if x.shape == y.shape else y.T)
    np.testing.assert_allclose(activation_scales(ours), activation_scales(keras), rtol=1e-5)


def check_verdicts(ours: Path, keras: Path) -> None:
    """Require equal predicted precisions by node, and findings by rule."""
    found, expected = qat_lib.analyze_onnx(ours), qat_lib.analyze_onnx(keras)
    assert found.layers
    for kind in ("layers", "adds", "pools"):
        rows = [x.precision for x in getattr(found, kind)]
        assert rows == [x.precision for x in getattr(expected, kind)]
    assert Counter(x.rule for x in found.findings) == Counter(x.rule for x in expected.findings)


@pytest.mark.matrix
def test_twins_have_the_same_numbers_and_verdicts(twins: Any) -> None:
    _, _, ours, keras = twins
    check_numbers(ours, keras, weights=20)
    check_verdicts(ours, keras)


@pytest.mark.slow
@pytest.mark.skipif(not WEIGHTS.is_file(), reason="no trained weights in ../shared/data")
def test_mobilenet_twins_have_same_numbers_and_verdicts(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    from qat_lib.models import mobilenetv2_imagenet as keras_mobilenet
    from qat_lib.models.weights import load_weights as load_keras_weights

    images = np.random.default_rng(3).normal(size=(8, 3, 64, 64)).astype(np.float32)
    example = torch.zeros(1, 3, 64, 64)
    module = mobilenet_v2()
    load_weights(module, WEIGHTS)
    quantized = qat_lib.torch.quantize_model(module, custom_qdq_cases="auto", example_input=example)
    qat_lib.torch.calibrate(quantized, [torch.from_numpy(images)], method="percentile")
    ours, keras = tmp_path / "torch.onnx", tmp_path / "keras.onnx"
    qat_lib.torch.export_onnx(quantized, ours, example_input=example)
    twin = keras_mobilenet(input_shape=(64, 64, 3))
    load_keras_weights(twin, WEIGHTS)
    quantized_twin = qat_lib.quantize_model(twin, custom_qdq_cases="auto")
    qat_lib.calibrate(quantized_twin, images.transpose(0, 2, 3, 1), method="percentile")
    qat_lib.export_onnx(quantized_twin, keras, channels_first_input=True)
    check_numbers(ours, keras, weights=53)
    check_verdicts(ours, keras)


def test_twins_give_the_same_answers(twins: Any, run_onnx: Any) -> None:
    quantized, _, ours, keras = twins
    (found,), (expected,) = run_onnx(ours, IMAGES), run_onnx(keras, IMAGES)
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())
    assert qat_lib.torch.check_parity(quantized, ours, IMAGES).passed


def test_an_exported_tensor_can_be_followed(twins: Any) -> None:
    _, plan, ours, _ = twins
    assert qat_lib.verify_onnx(ours, plan) == []
    for entry in plan.quantizers:
        trace = qat_lib.trace_tensor(entry.tensor, ours, plan)
        assert entry.layer in trace.keras_layers
        assert [quantizer.name for quantizer in trace.quantizers] == [entry.name]
        assert trace.quantizers[0].nodes
        assert trace.quantizers[0].readers
