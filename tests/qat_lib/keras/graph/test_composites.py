"""Layers that call other layers: inner quantizers from plan to ONNX."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from qat_lib import (
    QuantizationPlan,
    QuantizationSpec,
    TensorRTQDQCase,
    analyze_onnx,
    apply_plan,
    calibrate,
    check_parity,
    export_onnx,
    load_model,
    model_quantizers,
    plan_quantization,
    quantize_model,
)
from qat_lib.errors import PlanError, SpecError
from qat_lib.keras.wrappers import CompositeQuantizeWrapper
from qat_lib.keras.wrappers.inner import inner_layers


@keras.saving.register_keras_serializable(package="test_composites")
class Block(layers.Layer):
    """A transformer block as users write it, with its own weight.

    Layers stand in attributes and in a list.
    """

    def __init__(self, width: int, **options: Any) -> None:
        super().__init__(**options)
        self.width = width
        self.norm = layers.LayerNormalization()
        self.attention = layers.MultiHeadAttention(2, 4, dropout=0.1)
        self._feed = [layers.Dense(2 * width, activation="gelu"), layers.Dense(width)]

    def build(self, input_shape: Any) -> None:
        self.gain = self.add_weight(shape=(self.width,), initializer="ones", name="gain")
        self.norm.build(input_shape)
        self.attention.build(input_shape, input_shape)
        self._feed[0].build(input_shape)
        self._feed[1].build((*input_shape[:-1], 2 * self.width))
        super().build(input_shape)

    def call(self, x: Any, training: bool | None = None) -> Any:
        y = self.norm(x)
        x = x + self.attention(y, y, training=training)
        for dense in self._feed:
            y = dense(y)
        return x + y * self.gain

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "width": self.width}


@keras.saving.register_keras_serializable(package="test_composites")
class Branches(layers.Layer):
    """Convolutions with normalization between, on several inputs.

    Two layers read one of the inputs.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.a = layers.Conv2D(3, 3, padding="same")
        self.b = layers.Conv2D(3, 1)
        self.c = layers.Conv2D(3, 3, padding="same", use_bias=False)
        self.normal = layers.BatchNormalization()

    def build(self, x_shape: Any, other_shape: Any) -> None:
        self.a.build(x_shape)
        self.b.build(x_shape)
        self.c.build((*other_shape[:-1], 3))
        self.normal.build((*x_shape[:-1], 3))
        super().build(x_shape)

    def call(self, x: Any, other: Any, training: bool | None = None) -> Any:
        y = ops.relu(self.normal(self.c(ops.tanh(other)), training=training))
        return self.a(x) + self.b(x) + y


@keras.saving.register_keras_serializable(package="test_composites")
class Appending(layers.Layer):
    """Appends to its input shape when it is built, which a tuple allows."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dense = layers.Dense(3)

    def build(self, input_shape: Any) -> None:
        self.dense.build(input_shape[:-1] + (4,))  # noqa: RUF005 (takes no list)
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def test_layer_that_appends_to_its_shape_loads(tmp_path: Path) -> None:
    x = keras.Input((6, 4))
    quantized = quantize_model(keras.Model(x, Appending()(x)))
    array = data((6, 4))
    calibrate(quantized, array, "max")
    quantized.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(load_model(tmp_path / "model.keras")(array), quantized(array))


def sequence_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = keras.Input((6, 8), name="x")
    y = layers.TimeDistributed(layers.Dense(8), name="td")(x)
    y = Block(8, name="block")(y)
    y = layers.GroupQueryAttention(4, 4, 2, name="gqa")(y, y)
    y = layers.SpectralNormalization(layers.Dense(5), name="sn")(y)
    return keras.Model(x, layers.Dense(3, name="head")(layers.Flatten(name="flat")(y)), name="net")


def image_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3), name="x")
    other = layers.Conv2D(3, 3, padding="same", name="stem")(x)
    y = Branches(name="branches")(x, other)
    return keras.Model(x, layers.Dense(3, name="head")(layers.Flatten(name="flat")(y)), name="net")


MODELS = {"sequence": (sequence_model, (6, 8), (13, 15)), "image": (image_model, (8, 8, 3), (5, 5))}


def data(shape: tuple[int, ...], count: int = 16) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, *shape)).astype(np.float32)


def reads(plan: QuantizationPlan) -> dict[str, list[str]]:
    """Return who reads each quantized tensor."""
    entries = [entry for entry in plan.quantizers if entry.consumers]
    return {entry.tensor: [f"{c.layer}[{c.input}]" for c in entry.consumers] for entry in entries}


def test_plan_names_inner_layers_and_shares_quantizers() -> None:
    plan = plan_quantization(sequence_model())
    block = [
        f"block/{path}"
        for path in ("attention/query_dense", "attention/key_dense", "attention/value_dense")
    ]
    assert reads(plan) == {
        "x:0": ["td[0]"],
        "block:0": ["gqa[0]", "gqa[1]"],
        "gqa:0": ["sn[0]"],
        "flat:0": ["head[0]"],
        "block/attention/query_dense/input": [f"{path}[0]" for path in [*block, "block/feed/0"]],
        "block/attention/output_dense/input": ["block/attention/output_dense[0]"],
        "block/feed/1/input": ["block/feed/1[0]"],
        "gqa/output_dense/input": ["gqa/output_dense[0]"],
    }
    dense = [
        *block,
        "block/attention/output_dense",
        "block/feed/0",
        "block/feed/1",
        "td/layer",
        "sn/layer",
        "head",
    ]
    gqa = [f"gqa/{name}_dense" for name in ("query", "key", "value", "output")]
    assert {entry.tensor for entry in plan.by_kind("weight")} == {
        f"{path}/kernel" for path in [*dense, *gqa]
    }
    assert [s.layer for s in plan.skipped] == ["flat"]
    assert QuantizationPlan.from_json(plan.to_json()) == plan


def test_planning_leaves_the_model_as_it_is() -> None:
    model = sequence_model()
    x = data((6, 8))
    before, weights = model(x).numpy(), model.get_weights()
    plan_quantization(model, custom_qdq_cases=[TensorRTQDQCase()])
    assert all("call" not in vars(layer) for layer in model._flatten_layers())
    assert model.losses == []
    np.testing.assert_array_equal(model(x), before)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), weights, strict=True))


@pytest.mark.matrix_except("sequence")
@pytest.mark.parametrize("kind", MODELS)
def test_the_whole_way(kind: str, tmp_path: Path) -> None:
    make, shape, weighted = MODELS[kind]
    model, x = make(), data(shape)
    plan = plan_quantization(model, custom_qdq_cases=[TensorRTQDQCase()])
    quantized = apply_plan(model, plan)
    assert set(model_quantizers(quantized)) == {entry.name for entry in plan.quantizers}
    quantizers = model_quantizers(quantized).values()
    expected = model(x).numpy()
    for quantizer in quantizers:
        quantizer.disable()
    np.testing.assert_array_equal(quantized(x), expected)
    for quantizer in quantizers:
        quantizer.enable()
    report = calibrate(quantized, x, "max")
    assert set(report.tensors) == {
        entry.name for entry in plan.quantizers if entry.kind != "weight"
    }
    output = quantized(x).numpy()
    assert not np.array_equal(output, expected)
    np.testing.assert_allclose(output, expected, atol=0.1 * np.abs(expected).max())

    quantized.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(load_model(tmp_path / "model.keras")(x), output)
    clone = keras.models.clone_model(quantized)
    clone.set_weights(quantized.get_weights())
    np.testing.assert_array_equal(clone(x), output)

    exported = export_onnx(quantized, tmp_path / "model.onnx", plan=plan)
    assert exported.findings == ()
    assert check_parity(quantized, tmp_path / "model.onnx", x).passed
    analysis = analyze_onnx(tmp_path / "model.onnx")
    # The products inside of the attention are float.
    assert (analysis.int8_layers, len(analysis.layers)) == weighted
    assert {layer.keras_layer for layer in analysis.layers} <= {layer for layer, _ in named(model)}

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(quantized(x, training=True) ** 2)
    variables = quantized.trainable_variables
    assert len(variables) == len(model.trainable_variables)
    assert [
        v.path for v, g in zip(variables, tape.gradient(loss, variables), strict=True) if g is None
    ] == []


def named(model: keras.Model) -> list[tuple[str, Any]]:
    return [(layer.name, layer) for layer in model.layers]


def test_statistics_inside_of_composite_follow_data() -> None:
    model = quantize_model(image_model())
    normal = model.get_layer("quant_branches").layer.normal
    before = normal.moving_mean.numpy()
    model.compile("sgd", "mse")
    model.fit(data((8, 8, 3)), np.zeros((16, 3)), verbose=0)
    assert not np.array_equal(normal.moving_mean.numpy(), before)


def test_spectral_normalization_precedes_weight_quantization() -> None:
    x = keras.Input((4,), name="x")
    model = keras.Model(
        x, layers.SpectralNormalization(layers.Dense(4, use_bias=False), name="sn")(x)
    )
    spec = QuantizationSpec().add("sn", quantize_input=False)
    quantized = quantize_model(model, quantization_spec=spec)
    kernel = quantized.get_layer("quant_sn").layer.layer.kernel
    for _ in range(8):
        output = quantized(np.eye(4, dtype=np.float32), training=True)
    assert np.linalg.norm(kernel.numpy(), 2) == pytest.approx(1.0, abs=1e-2)
    step = np.abs(kernel.numpy()).max(axis=0) / 127
    np.testing.assert_allclose(output / step, np.rint(output / step), atol=1e-3)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_quantizes_stored_weights(policy: str) -> None:
    x = keras.Input((3, 4), name="x")
    y = layers.TimeDistributed(
        layers.Dense(4, use_bias=False, dtype=policy), name="td", dtype=policy
    )(x)
    model = keras.Model(x, layers.Activation("linear", dtype="float32")(y))
    quantized = quantize_model(
        model, quantization_spec=QuantizationSpec().add("td", quantize_input=False)
    )
    kernel = quantized.get_layer("quant_td").layer.layer.kernel.numpy()
    step = np.abs(kernel).max(axis=0) / 127
    expected = tf.cast(np.rint(kernel / step) * step, keras.DTypePolicy(policy).compute_dtype)
    output = quantized(np.eye(4, dtype=np.float32)[None, :3])[0]
    np.testing.assert_array_equal(output, tf.cast(expected, tf.float32)[:3])


def test_a_spec_names_layers_inside() -> None:
    spec = QuantizationSpec()
    spec.add("block/feed/0", quantize_input=False, quantize_weight=False)
    spec.add(r"block/attention/.*", is_regex=True, calibrator="mse", per_channel=False)
    spec.add("gqa", quantize_input=False, quantize_weight=False)
    spec.add("td", quantize_input=False, weight_range_policy="learned")
    plan = plan_quantization(sequence_model(), quantization_spec=spec)
    left = {(s.layer, s.reason) for s in plan.skipped}
    assert left == {("flat", "range-preserving"), ("block/feed/0", "excluded"), ("gqa", "excluded")}
    entries = {entry.tensor: entry for entry in plan.quantizers}
    assert "x:0" not in entries
    assert entries["td/layer/kernel"].range_policy == "learned"
    assert entries["block/attention/query_dense/input"].calibrator == "mse"
    assert entries["block/attention/key_dense/kernel"].channel_axes is None
    assert "block/feed/0[0]" not in reads(plan)["block/attention/query_dense/input"]


def test_partial_mode_quantizes_named_inner_layers() -> None:
    spec = QuantizationSpec().add("block/feed/1")
    plan = plan_quantization(sequence_model(), "partial", spec)
    assert [e.tensor for e in plan.quantizers] == ["block/feed/1/kernel", "block/feed/1/input"]
    quantized = apply_plan(sequence_model(), plan)
    assert set(model_quantizers(quantized)) == {e.name for e in plan.quantizers}


def test_readers_of_an_inner_tensor_must_agree() -> None:
    spec = QuantizationSpec().add(["block/feed/0", "block/attention/key_dense"], num_bits=[4, 8])
    with pytest.raises(
        SpecError, match="'block/attention/query_dense/input' ask for different values of num_bits"
    ):
        plan_quantization(sequence_model(), quantization_spec=spec)


@pytest.mark.matrix
def test_edited_plan_is_applied_as_it_stands() -> None:
    plan = plan_quantization(sequence_model())
    shorter = plan.without("block_feed_1_input_quantizer", "block_feed_0_kernel_quantizer")
    quantized = apply_plan(sequence_model(), shorter)
    assert set(model_quantizers(quantized)) == {entry.name for entry in shorter.quantizers}
    entry = next(e for e in plan.quantizers if e.tensor == "block/feed/1/kernel")
    for tensor, message in (
        ("block/feed/7/kernel", "no weighted layer 'feed/7'"),
        ("block/feed/1/bias", "no weight 'bias'"),
    ):
        with pytest.raises(PlanError, match=message):
            apply_plan(sequence_model(), replace(plan, quantizers=(replace(entry, tensor=tensor),)))


def test_a_quantized_composite_is_not_quantized_twice() -> None:
    once = quantize_model(sequence_model())
    twice = quantize_model(once)
    assert set(model_quantizers(twice)) == set(model_quantizers(once))
    x = data((6, 8))
    np.testing.assert_array_equal(twice(x), once(x))


class Recurrent(layers.Layer):
    """A Dense called in a loop of unknown length."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dense = layers.Dense(4)

    def build(self, input_shape: Any) -> None:
        self.dense.build(input_shape)
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        return ops.fori_loop(0, ops.shape(x)[0], lambda i, y: self.dense(y), x)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


class Separable(layers.Layer):
    """A layer whose inner weights need more than quantized operands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inner = layers.SeparableConv2D(3, 3, name="separable")

    def build(self, input_shape: Any) -> None:
        self.inner.build(input_shape)
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        return self.inner(x)

    def get_config(self) -> dict[str, Any]:
        return super().get_config()


def test_float_inner_layers_are_named_with_advice() -> None:
    x = keras.Input((8, 8, 4), name="x")
    model = keras.Model(x, layers.Flatten()(Separable(name="outer")(Recurrent(name="loop")(x))))
    skipped = {s.layer: (s.reason, s.detail) for s in plan_quantization(model).skipped}
    assert skipped["loop/dense"] == (
        "not quantizable",
        "runs in float: it is called in a loop or a branch, or not on a float tensor",
    )
    for layer, name, kind in (("loop", "dense", "Recurrent"), ("outer", "separable", "Separable")):
        assert skipped[layer][0] == "not quantizable"
        assert skipped[layer][1].startswith(f"runs in float, with the weights of {name}")
        assert skipped[layer][1].endswith(f"define {kind}QuantizeWrapper to quantize them")
    quantized = quantize_model(model)
    images = data((8, 8, 4), 2)
    np.testing.assert_array_equal(quantized(images), model(images))


def test_paths_lead_through_attributes_lists_and_dictionaries() -> None:
    class Holder(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self._a = layers.Dense(1)
            self.many = [layers.Dense(1), [layers.Dense(1)]]
            self.by_name = {"x": layers.Dense(1)}
            self.again = self._a
            self.nested = keras.Sequential([keras.Input((2,)), layers.Dense(1, name="last")])
            self.table = layers.Embedding(3, 2)

    paths = ["a", "many/0", "many/1/0", "by_name/x", "nested/last", "table"]
    assert sorted(inner_layers(Holder())) == sorted(paths)


def test_the_wrapper_stands_alone(tmp_path: Path) -> None:
    wrapper = CompositeQuantizeWrapper(layers.TimeDistributed(layers.Dense(2), name="td"))
    x = keras.Input((3, 4))
    model = keras.Model(x, wrapper(x))
    assert set(model_quantizers(model)) == {"td_layer_kernel_quantizer", "td_layer_input_quantizer"}
    array = data((3, 4))
    calibrate(model, array, "max")
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(load_model(tmp_path / "model.keras")(array), model(array))
    with pytest.raises(
        SpecError, match=r"Expected a layer with weighted layers inside\. Received: Dropout"
    ):
        CompositeQuantizeWrapper(layers.Dropout(0.5)).build((3, 4))
