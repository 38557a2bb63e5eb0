"""A PyTorch network through all that the steps ask of a framework."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import ConfigError
from qat_lib.export.options import ExportOptions
from qatline.components.artifacts.models import TorchRecipe

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

from qatline.components.training.torch_framework import TorchFramework  # noqa: E402
from qatline.components.training.torch_network import TorchNetwork  # noqa: E402

FRAMEWORK = TorchFramework()
X = np.random.default_rng(0).normal(size=(8, 6, 5, 3)).astype(np.float32)


@pytest.fixture
def network() -> TorchNetwork:
    nn = torch.nn
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    recipe = TorchRecipe(name="a.b:build", options={}, image_shape=(6, 5, 3), classes=2)
    return TorchNetwork(module=module.eval(), recipe=recipe)


@pytest.fixture
def quantized(network: TorchNetwork) -> TorchNetwork:
    plan = FRAMEWORK.plan(network, "full", None, [], unsigned=True)
    copy = FRAMEWORK.apply(network, plan)
    batches = [(X[:4], None), (X[4:], None)]
    report = FRAMEWORK.calibrate(
        copy, batches, "max", percentile=99.9, freeze=True, on_batch=lambda done: None
    )
    assert report.samples == 8
    return copy


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def test_name_and_parameters_say_what_the_network_is(network: TorchNetwork) -> None:
    assert FRAMEWORK.name(network) == "build"
    assert FRAMEWORK.parameters(network) == 3 * 4 * 9 + 4 + 4 * 2 + 2
    assert not FRAMEWORK.gives_probabilities(network)


def test_quantizers_hold_ranges_as_arrays(quantized: TorchNetwork) -> None:
    found = FRAMEWORK.quantizers(quantized)
    ranges = {name: (owner.amax.shape, owner.unsigned) for name, owner in found.items()}
    assert ((4, 1, 1, 1), False) in ranges.values()
    assert ((), True) in ranges.values()
    largest = np.abs(X).max()
    assert any(
        owner.amax == pytest.approx(largest) for owner in found.values() if owner.amax.ndim == 0
    )


def test_export_takes_channels_first_and_agrees(quantized: TorchNetwork, tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    options = ExportOptions(target="openvino", channels_first_input=True)
    report = FRAMEWORK.export_onnx(quantized, path, options=options, signed=False)
    assert report.quantizers == len(FRAMEWORK.quantizers(quantized))
    layout = json.loads(metadata(path)["qatline.layout"])
    assert list(layout.values()) == ["NCHW"]
    (image,) = onnx.load(path).graph.input
    assert [d.dim_value for d in image.type.tensor_type.shape.dim[1:]] == [3, 6, 5]
    parity = FRAMEWORK.check_parity(quantized, path, X)
    assert parity.passed
    assert parity.samples == 8


def test_export_makes_unsigned_quantizers_signed(quantized: TorchNetwork, tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    FRAMEWORK.export_onnx(quantized, path, options=ExportOptions(), signed=True)
    kinds = {value.data_type for value in onnx.load(path).graph.initializer}
    assert onnx.TensorProto.UINT8 not in kinds


def test_predict_takes_images_of_the_data(network: TorchNetwork) -> None:
    expected = network.module(torch.from_numpy(X.transpose(0, 3, 1, 2).copy())).detach().numpy()
    np.testing.assert_allclose(FRAMEWORK.predict(network, [X]), expected, rtol=1e-5, atol=1e-6)


def test_equalize_and_rounding_are_refused(network: TorchNetwork) -> None:
    def told(*_: Any) -> None:
        pytest.fail("nothing is corrected")

    with pytest.raises(ConfigError, match="is there for Keras models only"):
        FRAMEWORK.equalize(network, True, [], told)
    with pytest.raises(ConfigError, match=r"quantization\.rounding=nearest"):
        FRAMEWORK.adaround(network, [], correct=True, on_layer=told)
    assert FRAMEWORK.equalize(network, "auto", [], told) == (network, False)


def test_correct_bias_counts_layers(quantized: TorchNetwork) -> None:
    before = {name: p.detach().clone() for name, p in quantized.module.named_parameters()}
    seen: list[tuple[int, int]] = []
    count = FRAMEWORK.correct_bias(quantized, [(X, None)], on_layer=lambda *done: seen.append(done))
    assert (count, seen) == (2, [(1, 2), (2, 2)])
    after = dict(quantized.module.named_parameters())
    changed = {name for name, value in after.items() if not value.equal(before[name])}
    assert changed == {"0.bias", "4.bias"}
