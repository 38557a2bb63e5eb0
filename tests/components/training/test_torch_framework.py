"""A PyTorch network through all that the steps ask of a framework."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qat_lib.engines import BuildSpec, build_engine, load_engine
from qat_lib.export.options import ExportOptions
from qatline.components.artifacts.models import TorchRecipe
from qatline.components.evaluation.inference import EngineRunner

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

import qat_lib.torch  # noqa: E402
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
    plan = qat_lib.torch.plan_quantization(network.traced, unsigned=True)
    copy = FRAMEWORK.with_bare(network, qat_lib.torch.apply_plan(FRAMEWORK.bare(network), plan))
    batches = FRAMEWORK.inputs(network, [(X[:4], None), (X[4:], None)])
    assert qat_lib.torch.calibrate(copy.module, batches, "max").samples == 8
    return copy


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def test_name_and_parameters_say_what_the_network_is(network: TorchNetwork) -> None:
    assert FRAMEWORK.name(network) == "build"
    assert FRAMEWORK.parameters(network) == 3 * 4 * 9 + 4 + 4 * 2 + 2
    assert FRAMEWORK.last_activation(network) != "softmax"


def test_quantizers_hold_ranges_as_arrays(quantized: TorchNetwork) -> None:
    found = FRAMEWORK.quantizers(quantized)
    ranges = {name: (owner.amax.shape, owner.unsigned) for name, owner in found.items()}
    assert ((4, 1, 1, 1), False) in ranges.values()
    assert ((), True) in ranges.values()
    largest = np.abs(X).max()
    assert any(
        owner.amax == pytest.approx(largest) for owner in found.values() if owner.amax.ndim == 0
    )


@pytest.mark.matrix
def test_export_takes_channels_first_and_agrees(quantized: TorchNetwork, tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    options = ExportOptions(target="openvino", channels_first_input=True)
    report = FRAMEWORK.export_onnx(quantized, path, options=options, signed=False)
    assert report.quantizers == len(FRAMEWORK.quantizers(quantized))
    layout = json.loads(metadata(path)["qatline.layout"])
    assert list(layout.values()) == ["NCHW"]  # the output has no channels
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
    np.testing.assert_allclose(
        np.concatenate([*FRAMEWORK.predict(network, [X])]), expected, rtol=1e-5, atol=1e-6
    )


class Labeller(torch.nn.Module):
    """Labels pixels and time steps: two inputs and two outputs, all with channels."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels, self.steps = torch.nn.Conv2d(3, 2, 1), torch.nn.Conv1d(4, 2, 1)

    def forward(self, image: torch.Tensor, signal: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"mask": self.pixels(image), "events": self.steps(signal)}


def test_engine_answers_channels_last_as_the_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    recipe = TorchRecipe(
        name="a.b:build", options={}, inputs={"image": (6, 5, 3), "signal": (7, 4)}, classes=2
    )
    network = TorchNetwork(module=Labeller().eval(), recipe=recipe)
    signal = np.random.default_rng(1).normal(size=(8, 7, 4)).astype(np.float32)
    batch = {"image": X, "signal": signal}
    path = tmp_path / "m.onnx"
    FRAMEWORK.export_onnx(network, path, options=ExportOptions(), signed=False)
    assert json.loads(metadata(path)["qatline.layout"]) == {
        "image": "NCHW",
        "signal": "NCW",
        "mask": "NCHW",
        "events": "NCW",
    }
    assert FRAMEWORK.check_parity(network, path, batch).passed
    (expected,) = FRAMEWORK.predict(network, [batch])
    spec = BuildSpec(backend="onnxruntime", max_batch_size=4)
    artifact = build_engine(path, spec, output=tmp_path / "m.engine")
    with load_engine(artifact.path) as engine:
        run = EngineRunner(engine, recipe.inputs)
        assert run.output_shapes == {"mask": (6, 5, 2), "events": (7, 2)}
        outputs = run(batch)
    for name in ("mask", "events"):
        np.testing.assert_allclose(outputs[name], expected[name], rtol=1e-4, atol=1e-5)
