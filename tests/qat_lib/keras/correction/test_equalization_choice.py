"""choose_equalization: equalized only where that lowers the error of INT8."""

import os
from pathlib import Path

import keras
import numpy as np
import pytest

import qat_lib
from qat_lib.keras.correction import choose_equalization

SHARED = Path(os.environ.get("QATLINE_SHARED_DATA", "../shared/data"))


def images(samples=96, seed=0):
    return np.random.default_rng(seed).normal(size=(samples, 8, 8, 3)).astype("float32")


def network(spread, *, inputs=None):
    """Return a depthwise network whose channels differ as ``spread``, each as important."""
    keras.utils.set_random_seed(3)
    spread = np.float32(spread)
    x = keras.Input((8, 8, 3), name="image") if inputs is None else inputs["image"]
    y = keras.layers.Conv2D(4, 1, name="conv")(x)
    y = keras.layers.ReLU(6.0, name="relu")(y)
    y = keras.layers.DepthwiseConv2D(3, name="depthwise")(y)
    y = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(y))
    model = keras.Model(x if inputs is None else inputs, y)
    conv, depthwise = model.get_layer("conv"), model.get_layer("depthwise")
    conv.kernel.assign(conv.kernel.numpy() * spread)
    depthwise.kernel.assign(depthwise.kernel.numpy() / spread[:, None])
    return model


UNEVEN = (4, 0.4, 0.04, 0.004)


def quantize(model, batches):
    quantized = qat_lib.quantize_model(model)
    qat_lib.calibrate(quantized, batches)
    return quantized


def test_auto_equalizes_uneven_channels():
    choice = choose_equalization(network(UNEVEN), images(), "auto", quantize)
    assert choice.applied
    assert choice.errors[1] < 0.5 * choice.errors[0]
    assert "equalized" in choice.reason
    assert isinstance(choice.model.get_layer("relu"), qat_lib.keras.quantizers.ChannelReLU)


def test_auto_leaves_a_model_that_gets_worse():
    """The quantized form of the equalized one is spoiled."""
    model = network(UNEVEN)

    def spoiled(candidate, batches):
        quantized = quantize(candidate, batches)
        if isinstance(candidate.get_layer("relu"), qat_lib.keras.quantizers.ChannelReLU):
            kernel = quantized.get_layer("quant_depthwise").trainable_weights[0]
            kernel.assign(0.5 * kernel)
        return quantized

    choice = choose_equalization(model, images(), "auto", spoiled)
    assert not choice.applied
    assert choice.model is model
    assert choice.errors[1] > choice.errors[0]


def test_auto_leaves_a_model_without_depthwise_convolutions():
    x = keras.Input((8, 8, 3))
    model = keras.Model(x, keras.layers.Conv2D(3, 1)(keras.layers.Conv2D(3, 1)(x)))
    choice = choose_equalization(model, images(), "auto", quantize)
    assert (choice.model, choice.applied, choice.errors) == (model, False, None)


def test_auto_leaves_a_quantized_model():
    model = quantize(network(UNEVEN), images())
    assert choose_equalization(model, images(), "auto", quantize).model is model


@pytest.mark.parametrize("setting", [True, False])
def test_a_setting_decides_without_a_measurement(setting):
    def fail(*_):
        pytest.fail("nothing is quantized")

    choice = choose_equalization(network(UNEVEN), images(), setting, fail)
    assert (choice.applied, choice.errors) == (setting, None)


def test_auto_takes_inputs_by_name():
    model = network(UNEVEN, inputs={"image": keras.Input((8, 8, 3), name="image")})
    assert choose_equalization(model, {"image": images()}, "auto", quantize).applied


@pytest.mark.matrix
@pytest.mark.skipif(
    not (SHARED / "mobilenetv2_imagenet.npz").is_file(), reason=f"no ImageNet weights in {SHARED}"
)
def test_mobilenetv2_is_equalized_without_bounds(tmp_path):
    import onnx

    from qat_lib.models import mobilenetv2_imagenet
    from qat_lib.models.weights import load_weights

    model = mobilenetv2_imagenet(input_shape=(96, 96, 3))
    load_weights(model, SHARED / "mobilenetv2_imagenet.npz")
    with np.load(SHARED / "cifar10_jpeg_subset.npz", allow_pickle=False) as file:
        small = file["x_train"][:24]
    images = np.repeat(np.repeat(small, 3, axis=1), 3, axis=2)
    data = (images / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    data = data.astype("float32")
    recipe = qat_lib.PtqRecipe(backend="openvino", batch_size=8, equalize=True)
    choice = recipe.prepare(model, data)
    quantized = qat_lib.apply_plan(choice.model, recipe.plan(choice.model))
    recipe.finish(quantized, data)
    qat_lib.export_onnx(quantized, tmp_path / "net.onnx", target="openvino")
    operators = {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}
    assert not operators & {"Min", "Relu", "Clip"}
