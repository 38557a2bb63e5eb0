"""Plans for CPUs that add two products in 16 bits, and the weights that follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import qat_lib
from qat_lib.core.plan import QuantizationPlan
from qat_lib.engines.onnx_graph import read_summary
from qat_lib.engines.pair_sums import LARGEST_SUM, largest_sum, overflowing_nodes, paired_weights
from qat_lib.errors import SpecError
from qat_lib.keras.quantizers import TensorQuantizer
from qat_lib.onnx_view.graph import OnnxGraph

layers = keras.layers


def image_network() -> Any:
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((12, 12, 6))
    x = layers.Conv2D(8, 3, activation="relu", name="first")(x)
    x = layers.DepthwiseConv2D(3, activation="relu", name="depthwise")(x)
    x = layers.SeparableConv2D(6, 3, activation="relu", name="separable")(x)
    x = layers.Conv2D(12, 3, groups=2, padding="same", activation="relu", name="grouped")(x)
    x = layers.Flatten()(x)
    x = layers.Dense(7, activation="relu", name="sorted")(x)
    return keras.Model(inputs, layers.Dense(4, name="last")(x))


def plan(model: Any, **options: Any) -> dict[str, Any]:
    found = qat_lib.plan_quantization(model, custom_qdq_cases="auto", **options)
    return {entry.tensor: entry for entry in found.by_kind("weight")}


def test_plan_names_the_axis_of_pairs_by_layer() -> None:
    entries = plan(image_network(), cpu="avx2")
    axes = {tensor: (entry.pair_axis, entry.num_bits) for tensor, entry in entries.items()}
    assert axes == {
        "first/kernel": (-2, 8),
        "depthwise/kernel": (None, 8),
        "separable/depthwise_kernel": (None, 8),
        "separable/pointwise_kernel": (-2, 8),
        "grouped/kernel": (None, 7),  # three channels a group: neighbours are not known
        "sorted/kernel": (None, 7),  # the export sorts its rows
        "last/kernel": (-2, 8),
    }
    assert "16 bits" in entries["first/kernel"].reason
    assert "7 bits" in entries["sorted/kernel"].reason


@pytest.mark.parametrize("cpu", [None, "vnni", "arm"])
def test_plan_for_other_cpus_has_no_pairs(cpu: Any) -> None:
    entries = plan(image_network(), cpu=cpu)
    assert {(e.pair_axis, e.num_bits) for e in entries.values()} == {(None, 8)}


def test_plan_refuses_an_unknown_cpu() -> None:
    with pytest.raises(SpecError, match=r"cpu must be None or one of vnni, avx2, arm\."):
        plan(image_network(), cpu="sse")


def first_layer(channels: int, *, torch: bool = False, groups: int = 1) -> Any:
    if torch:
        nn = pytest.importorskip("torch").nn
        return nn.Sequential(nn.Conv2d(channels, 8, 3, groups=groups), nn.ReLU()).eval()
    inputs = keras.Input((12, 12, channels))
    return keras.Model(inputs, layers.Conv2D(8, 3, groups=groups, name="0")(inputs))


@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize(("channels", "is_float"), [(1, False), (2, True), (4, True), (5, False)])
def test_images_stay_in_float_without_vnni(channels: int, is_float: bool, torch: bool) -> None:
    model = first_layer(channels, torch=torch)
    (weight,) = qat_lib.plan_quantization(model).by_kind("weight")
    assert weight.pair_axis is None
    found = qat_lib.plan_quantization(model, cpu="avx2")
    assert (not found.by_kind("weight")) is is_float
    reasons = {each.layer: (each.reason, each.detail) for each in found.skipped}
    if is_float:
        reason, detail = reasons["0"]
        assert reason == "off by default"
        assert detail.startswith(f"its {channels} channels leave 7 bits")
    else:
        assert "0" not in reasons


def test_spec_quantizes_an_image_without_vnni() -> None:
    spec = qat_lib.QuantizationSpec().add("0")
    entries = plan(first_layer(3), cpu="avx2", quantization_spec=spec)
    assert entries["0/kernel"].pair_axis == -2


def test_groups_of_few_channels_are_quantized() -> None:
    assert plan(first_layer(4, groups=2), cpu="avx2")["0/kernel"].pair_axis == -2


def test_plan_takes_7_bits_for_ranges_that_stay() -> None:
    spec = qat_lib.QuantizationSpec().add("first", weight_range_policy="learned")
    entries = plan(image_network(), cpu="avx2", quantization_spec=spec)
    assert (entries["first/kernel"].pair_axis, entries["first/kernel"].num_bits) == (None, 7)


def test_plan_keeps_cpu_and_pairs_in_json() -> None:
    found = qat_lib.plan_quantization(image_network(), cpu="avx2")
    again = QuantizationPlan.from_json(found.to_json())
    assert again == found
    assert again.cpu == "avx2"
    assert "for avx2 CPUs" in str(found)
    plain = qat_lib.plan_quantization(image_network())
    older = plain.to_dict()
    del older["cpu"]
    for entry in older["quantizers"]:
        del entry["pair_axis"]
    assert QuantizationPlan.from_dict(older).digest() == plain.digest()
    assert found.digest() != plain.digest()


@pytest.mark.parametrize("shape", [(3, 3, 5, 4), (6, 4), (3, 3, 1, 4)])
@pytest.mark.parametrize("channel_axes", [(-1,), None])
def test_range_covers_the_largest_pair(shape: tuple[int, ...], channel_axes: Any) -> None:
    kernel = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    quantizer = TensorQuantizer(channel_axes=channel_axes, pair_axis=-2, range_policy="current")
    quantizer.build(shape)
    padded = np.concatenate([kernel, np.zeros_like(kernel[..., :1, :])], -2)
    sums = []
    for start in range(0, shape[-2], 2):
        pair = padded[..., start : start + 2, :]
        sums += [np.maximum(pair, 0).sum(-2), np.maximum(-pair, 0).sum(-2)]
    largest = np.stack(sums).reshape(-1, shape[-1]).max(0)
    expected = largest if channel_axes else largest.max()
    np.testing.assert_allclose(np.ravel(quantizer.range_of(kernel)), np.ravel(expected), rtol=1e-6)


@pytest.mark.matrix
def test_exported_weights_never_overflow(tmp_path: Path) -> None:
    model = image_network()
    data = np.random.default_rng(0).normal(size=(32, 12, 12, 6)).astype("float32")
    quantized = qat_lib.quantize_model(model, custom_qdq_cases="auto", unsigned=True, cpu="avx2")
    qat_lib.calibrate(quantized, data)
    quantized.compile(keras.optimizers.Adam(0.05), "mse")
    quantized.fit(data, np.zeros((32, 4), "float32"), epochs=2, verbose=0)
    for suffix in ("trained", "loaded"):
        file = tmp_path / f"{suffix}.onnx"
        qat_lib.export_onnx(quantized, file, target="openvino")
        graph = OnnxGraph.load(file)
        assert read_summary(file).metadata["cpu"] == "avx2"
        assert not list(overflowing_nodes(graph))
        # The room is used: no weights are smaller than they need to be.
        sums = [
            largest_sum(w) for w in (paired_weights(graph, n) for n in graph.nodes) if w is not None
        ]
        assert len(sums) == 5
        assert min(sums) >= 63
        assert max(sums) in (LARGEST_SUM - 1, LARGEST_SUM)
        quantized.save(tmp_path / "model.keras")
        quantized = qat_lib.load_model(tmp_path / "model.keras")


def test_torch_plans_and_ranges_are_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import qat_lib.torch as front

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(6, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, groups=8),
        torch.nn.Conv2d(8, 9, 3, groups=1),
        torch.nn.Conv2d(9, 6, 1, groups=3),
        torch.nn.Flatten(),
        torch.nn.Linear(6 * 36, 4),
    ).eval()
    found = front.plan_quantization(module, cpu="avx2")
    axes = [(entry.pair_axis, entry.num_bits) for entry in found.by_kind("weight")]
    assert axes == [(1, 8), (None, 8), (1, 8), (None, 7), (1, 8)]
    quantized = front.quantize_model(module, unsigned=True, cpu="avx2")
    front.calibrate(quantized, [torch.randn(8, 6, 12, 12)])
    kernel = module[0].weight.detach().numpy()
    keras_quantizer = TensorQuantizer(channel_axes=(0,), pair_axis=1, range_policy="current")
    keras_quantizer.build(kernel.shape)
    np.testing.assert_allclose(
        quantized.get_submodule("0").weight_quantizer.amax.numpy(),
        keras_quantizer.range_of(kernel).numpy(),
        rtol=1e-6,
    )
    file = tmp_path / "m.onnx"
    front.export_onnx(quantized, file, example_input=torch.randn(1, 6, 12, 12), target="openvino")
    assert read_summary(file).metadata["cpu"] == "avx2"
    assert not list(overflowing_nodes(OnnxGraph.load(file)))
