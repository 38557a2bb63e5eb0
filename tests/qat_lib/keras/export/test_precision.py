"""Models of any floating type export as their float32 twins do."""

from contextlib import contextmanager

import numpy as np
import onnx
import pytest

import qat_lib
from qat_lib.analysis import analyze_onnx

keras = pytest.importorskip("keras")
layers = keras.layers

POLICIES = ("mixed_float16", "mixed_bfloat16", "float16", "float64")


class Scaled(layers.Layer):
    """Casts by name, as layers of users do."""

    def call(self, x):
        return keras.ops.cast(x, "float16") * keras.ops.cast(0.5, "float16")

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, "float16")


@contextmanager
def under(policy):
    """Build layers under a policy within the block."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def build(policy):
    """Return a small network under a policy, sensitive to half precision.

    Keras computes some of it differently in half precision.
    """
    with under(policy):
        image = keras.Input((8, 8, 3), name="image")
        x = layers.Normalization(mean=[0.1, 0.2, 0.3], variance=[0.3, 0.2, 0.1], name="norm")(image)
        x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv")(x)
        skip = layers.ReLU(name="relu")(layers.BatchNormalization(name="bn")(x))
        x = layers.DepthwiseConv2D(3, padding="same", name="depthwise")(skip)
        x = layers.Conv2D(8, 1, name="point")(layers.LeakyReLU(0.1, name="leaky")(x))
        x = layers.Add(name="sum")([x, skip])
        x = layers.LayerNormalization(name="layernorm")(Scaled(name="scaled")(x))
        x = layers.GlobalAveragePooling2D(name="pool")(x)
        return keras.Model(
            image, layers.Dense(4, activation="softmax", dtype="float32", name="probs")(x)
        )


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).uniform(-1, 1, (16, 8, 8, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def weights():
    keras.utils.set_random_seed(0)
    # Values that float16 and bfloat16 hold, so that every policy stores the same.
    rng = np.random.default_rng(1)
    return [rng.integers(1, 128, w.shape) / 128 for w in build("float32").weights]


def networks(policy, weights):
    model = build(policy)
    model.set_weights(weights)
    plan = qat_lib.plan_quantization(model, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])
    quantized = qat_lib.apply_plan(model, plan)
    # The same ranges for every policy, where a calibration would see the policy's own rounding.
    for name, quantizer in qat_lib.model_quantizers(quantized).items():
        if not name.endswith("kernel_quantizer"):
            quantizer.amax = 1.0 + len(name) / 8
    return model, quantized


@pytest.fixture(scope="module")
def twin(weights, tmp_path_factory):
    folder = tmp_path_factory.mktemp("twin")
    for name, model in zip(("float", "int8"), networks("float32", weights), strict=True):
        qat_lib.export_onnx(model, folder / f"{name}.onnx")
    return folder


def graph_of(path):
    """Return the nodes and the constants of a file."""
    graph = onnx.load(path).graph
    nodes = [n.SerializeToString(deterministic=True) for n in graph.node]
    return (
        nodes,
        {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer},
        list(graph.input),
    )


@pytest.mark.matrix_except("mixed_float16", "float64")
@pytest.mark.parametrize("policy", POLICIES)
def test_export_gives_the_float32_twins_graph(policy, weights, twin, tmp_path):
    for name, model in zip(("float", "int8"), networks(policy, weights), strict=True):
        path = tmp_path / f"{name}.onnx"
        assert qat_lib.export_onnx(model, path).findings == ()
        nodes, constants, inputs = graph_of(path)
        expected_nodes, expected_constants, expected_inputs = graph_of(twin / f"{name}.onnx")
        assert nodes == expected_nodes
        assert inputs == expected_inputs
        assert constants.keys() == expected_constants.keys()
        for key, value in constants.items():
            assert value.dtype == expected_constants[key].dtype
            np.testing.assert_allclose(value, expected_constants[key], rtol=1e-6)
        assert {
            layer.dtype_policy.name for layer in model.layers if layer.name in ("bn", "relu")
        } == {policy}


def test_quantized_twin_runs_in_int8(twin):
    report = analyze_onnx(twin / "int8.onnx")
    assert report.int8_layers == len(report.layers) == 4


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_parity_compares_with_keras_in_float32(policy, images, tmp_path):
    with under(policy):
        image = keras.Input((8, 8, 3))
        x = layers.Normalization(name="norm")(image)
        x = layers.Dense(4)(layers.Flatten()(layers.Conv2D(4, 3)(x)))
        model = keras.Model(image, x)
    model.get_layer("norm").adapt(images)
    qat_lib.export_onnx(model, tmp_path / "model.onnx")
    report = qat_lib.check_parity(model, tmp_path / "model.onnx", images)
    assert report.passed, report
    assert report.tolerance == 1e-4
    assert model.get_layer("norm").mean.dtype == policy.removeprefix("mixed_")
