"""The branch of a switch: eager, traced for training, for inference and for XLA."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
import tf2onnx
from traced_graphs import ops_of

from qat_lib import QuantizationSpec, TensorQuantizer, calibrate, quantize_model
from qat_lib.keras.quantizers.branching import Branch, compiles_with_xla

CONDITIONS = {"If", "StatelessIf"}
IMAGES = np.random.default_rng(0).normal(size=(4, 6, 6, 2)).astype(np.float32)


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_branch_computes_or_passes_on(jit_compile: bool | None) -> None:
    def run(x: Any, on: Any) -> tuple[Any, Any]:
        branch = Branch(on)
        doubled = branch.run(x, lambda x: 2.0 * x)
        return doubled, branch.run(x, tf.reduce_sum, tf.constant(-1.0))

    if jit_compile is not None:
        run = tf.function(run, jit_compile=jit_compile)
    x = tf.constant([1.0, -0.0, np.nan])
    for on, doubled, total in ((True, [2.0, -0.0, np.nan], np.nan), (False, x, -1.0)):
        found = run(x, tf.constant(on))
        np.testing.assert_array_equal(found[0], doubled)
        np.testing.assert_array_equal(found[1], total)


def test_branch_off_passes_bits_on() -> None:
    x = tf.constant([1e-40, -0.0, np.nan, np.inf])
    run = tf.function(lambda x, on: Branch(on).run(x, tf.negative))
    assert run(x, tf.constant(False)).numpy().tobytes() == x.numpy().tobytes()


def test_branch_keeps_the_static_shape() -> None:
    traced = tf.function(lambda x, on: Branch(on).run(x, tf.abs)).get_concrete_function(
        tf.TensorSpec((None, 3)), tf.TensorSpec((), tf.bool)
    )
    assert traced.structured_outputs.shape.as_list() == [None, 3]


@pytest.mark.matrix_except("False-ema", "True-learned")
@pytest.mark.parametrize("policy", ["frozen", "ema", "last", "learned", "current"])
@pytest.mark.parametrize("training", [False, True])
def test_quantizer_traces_no_conditions(policy: str, training: bool) -> None:
    quantizer = TensorQuantizer(range_policy=policy)
    quantizer(tf.zeros((4, 3)))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = quantizer(x, training=training)
        return tape.gradient(y, x)

    assert not ops_of(step, tf.TensorSpec((4, 3))) & CONDITIONS


@pytest.fixture(scope="module", params=["frozen", "learned"])
def quantized(request: pytest.FixtureRequest) -> Any:
    keras.utils.set_random_seed(0)
    # Two quantizers of each kind: converters stumble over a function that is called twice.
    image = keras.Input((6, 6, 2), name="image")
    x = keras.layers.Conv2D(3, 3, activation="relu", name="one")(image)
    x = keras.layers.Conv2D(3, 3, activation="relu", name="two")(x)
    x = keras.layers.Dense(3, name="head")(keras.layers.Flatten(name="flat")(x))
    spec = QuantizationSpec()
    for name in ("one", "two", "head"):
        spec.add(name, range_policy=request.param)
    model = quantize_model(keras.Model(image, x), quantization_spec=spec)
    calibrate(model, IMAGES, "max")
    return model


@pytest.mark.matrix
def test_inference_graphs_convert_with_tf2onnx(quantized: Any, tmp_path: Path) -> None:
    tf2onnx.convert.from_function(
        tf.function(lambda batch: quantized(batch, training=False)),
        [tf.TensorSpec((4, 6, 6, 2), name="batch")],
        opset=17,
        output_path=str(tmp_path / "model.onnx"),
    )
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    [found] = session.run(None, {"batch": IMAGES})
    expected = quantized(IMAGES).numpy()
    # tf2onnx quantizes in an arithmetic of its own: a step of the integers may differ.
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.matrix
def test_inference_graphs_convert_with_tensorflow_lite(quantized: Any, tmp_path: Path) -> None:
    quantized.export(tmp_path, verbose=False)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path))
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    assert converter.convert()[4:8] == b"TFL3"


@pytest.mark.parametrize("jit_compile", [False, True])
def test_xla_is_seen_also_from_inner_functions(jit_compile: bool) -> None:
    seen = []

    @tf.function
    def inner(x: Any) -> Any:
        seen.append(compiles_with_xla())
        return x + 1.0

    tf.function(lambda x: inner(x) * 2.0, jit_compile=jit_compile)(tf.constant(1.0))
    assert seen == [jit_compile]
    assert not compiles_with_xla()
