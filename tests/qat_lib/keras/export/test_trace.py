"""Models are traced in inference mode, whatever the layers' default."""

import logging

import numpy as np
import onnx
import pytest

import qat_lib

keras = pytest.importorskip("keras")
layers = keras.layers


class Noisy(layers.Layer):
    """A layer that trains unless it is told not to."""

    def call(self, x, training=True):
        return x + 1.0 if training else x


class Holder(layers.Layer):
    """A layer that holds one and takes no ``training`` itself."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = Noisy()

    def call(self, x):
        return self.inner(x)


@keras.saving.register_keras_serializable("test_trace")
class TwoLevels(layers.Layer):
    """A layer that computes two outputs."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.fine, self.coarse = layers.Conv2D(4, 3), layers.Conv2D(4, 3, strides=2)

    def build(self, shape):
        self.fine.build(shape)
        self.coarse.build(shape)

    def call(self, x):
        return self.fine(x), self.coarse(x)


def augmentation(x):
    for layer in (
        layers.RandomFlip(),
        layers.RandomRotation(0.2),
        layers.RandomZoom(0.2),
        layers.RandomContrast(0.2),
        layers.GaussianNoise(0.3),
        layers.SpatialDropout2D(0.5),
        Noisy(),
        Holder(),
    ):
        x = layer(x)
    return x


def build():
    inner = keras.Input((8, 8, 3))
    nested = keras.Model(inner, augmentation(inner), name="augment")
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(4, 3, name="conv")(augmentation(nested(image)))
    return keras.Model(image, layers.Dense(3)(layers.Dropout(0.5)(layers.Flatten()(x))))


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).uniform(0, 1, (8, 8, 8, 3)).astype(np.float32)


@pytest.mark.parametrize("quantized", [False, True])
def test_layers_that_act_in_training_only_vanish(quantized, images, tmp_path):
    model = build()
    if quantized:
        model = qat_lib.quantize_model(model)
        qat_lib.calibrate(model, images)
    qat_lib.export_onnx(model, tmp_path / "model.onnx")
    operators = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert operators <= {
        "Transpose",
        "Conv",
        "Reshape",
        "Flatten",
        "Gemm",
        "QuantizeLinear",
        "DequantizeLinear",
    }
    assert qat_lib.check_parity(model, tmp_path / "model.onnx", images).passed


def test_call_with_training_true_warns(tmp_path, caplog):
    image = keras.Input((8, 8, 3))
    model = keras.Model(
        image, layers.Conv2D(2, 3)(layers.Dropout(0.5, name="monte_carlo")(image, training=True))
    )
    with caplog.at_level(logging.WARNING, logger="qat_lib"):
        qat_lib.export_onnx(model, tmp_path / "model.onnx")
    assert [
        n.op_type for n in onnx.load(tmp_path / "model.onnx").graph.node if n.op_type != "Transpose"
    ] == ["Conv"]
    assert any(
        "monte_carlo" in r.getMessage() and "inference mode" in r.getMessage()
        for r in caplog.records
    )


def test_augmentation_and_what_it_reads_share_one_quantizer():
    image = keras.Input((8, 8, 3), name="image")
    flipped = layers.RandomFlip(name="flip")(image)
    sides = [layers.Conv2D(2, 3, name="before")(image), layers.Conv2D(2, 3, name="behind")(flipped)]
    plan = qat_lib.plan_quantization(keras.Model(image, layers.Concatenate()(sides)))
    assert [entry.tensor for entry in plan.by_kind("activation")] == ["image:0"]


def test_quantizers_of_an_unused_output_are_absent(images, tmp_path):
    image = keras.Input((8, 8, 3), name="image")
    float_model = keras.Model(image, TwoLevels(name="levels")(image)[0])
    plan = qat_lib.plan_quantization(float_model)
    model = qat_lib.quantize_model(float_model)
    qat_lib.calibrate(model, images)
    report = qat_lib.export_onnx(model, tmp_path / "model.onnx", plan=plan)
    (finding,) = report.findings
    assert (finding.code, finding.severity) == ("Q01", "info")
    assert finding.quantizer == "levels_coarse_kernel_quantizer"
    assert report.quantizers == 2
    # Without the record, which names the absent quantizers, nothing tells them from lost ones.
    graph = onnx.load(tmp_path / "model.onnx")
    del graph.metadata_props[:]
    onnx.save(graph, tmp_path / "bare.onnx")
    assert "error" in {f.severity for f in qat_lib.verify_onnx(tmp_path / "bare.onnx", plan=plan)}
