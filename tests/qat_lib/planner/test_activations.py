"""Unsigned quantizers: their tensors, that these are non-negative, and their export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
from keras import layers, ops

from qat_lib import (
    QuantizationPlan,
    QuantizationSpec,
    TensorQuantizer,
    TensorRTQDQCase,
    apply_plan,
    calibrate,
    check_parity,
    export_onnx,
    load_model,
    model_quantizers,
    plan_quantization,
    quantize_model,
    verify_onnx,
)
from qat_lib.core.plan import QuantizerEntry
from qat_lib.errors import ExportError, PlanError
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.planner.activations import non_negative_tensors

RELU = keras.activations.relu
NEVER_NEGATIVE: list[Callable[[Any], Any]] = [
    layers.ReLU(),
    layers.ReLU(max_value=6.0),
    layers.Activation("relu6"),
    layers.Activation("sigmoid"),
    layers.Activation("hard_sigmoid"),
    layers.Activation("softplus"),
    layers.Softmax(),
    layers.Conv2D(4, 3, activation="relu"),
    layers.Dense(4, activation="softmax"),
    RELU,
    ops.relu6,
    lambda x: RELU(x, max_value=2.0),
    keras.activations.softmax,
    keras.activations.exponential,
    lambda x: layers.MaxPooling2D()(RELU(x)),
    lambda x: layers.AveragePooling2D(2)(RELU(x)),
    lambda x: layers.ZeroPadding2D()(layers.Dropout(0.5)(RELU(x))),
    lambda x: layers.UpSampling2D(interpolation="bilinear")(RELU(x)),
    lambda x: layers.Flatten()(RELU(x)),
    lambda x: layers.Add()([RELU(x), ops.relu6(x)]),
    lambda x: RELU(x) * ops.sigmoid(x),
    lambda x: layers.Maximum()([x, RELU(x)]),
    lambda x: layers.Minimum()([ops.sigmoid(x), RELU(x)]),
    lambda x: layers.Concatenate()([RELU(x), ops.sigmoid(x)]),
    lambda x: TensorQuantizer(unsigned=True)(x),
]
MAY_BE_NEGATIVE: list[Callable[[Any], Any]] = [
    layers.Conv2D(4, 3),
    layers.LeakyReLU(),
    layers.ReLU(negative_slope=0.1),
    layers.ReLU(6.0, negative_slope=0.1),
    layers.Activation("swish"),
    layers.Activation("tanh"),
    layers.BatchNormalization(),
    lambda x: layers.BatchNormalization()(RELU(x)),
    lambda x: RELU(x, negative_slope=0.1),
    lambda x: RELU(x) - 1.0,
    lambda x: RELU(x) * -1.0,
    lambda x: layers.Rescaling(-1.0)(RELU(x)),
    lambda x: layers.Add()([RELU(x), x]),
    lambda x: layers.Subtract()([RELU(x), ops.sigmoid(x)]),
    lambda x: layers.Minimum()([RELU(x), x]),
    lambda x: layers.Concatenate()([RELU(x), x]),
    lambda x: layers.UpSampling2D(interpolation="bicubic")(RELU(x)),
    lambda x: layers.LSTM(3, activation="relu", recurrent_activation="tanh")(
        layers.Reshape((36, 4))(x)
    ),
    lambda x: x,
]


def built(make: Callable[[Any], Any]) -> tuple[keras.Model, bool]:
    x = keras.Input((6, 6, 4))
    y = make(x)
    model = keras.Model(x, y if y is not x else layers.Identity()(x))
    graph = LayerGraph(model)
    return model, graph.outputs[0] in non_negative_tensors(graph)


@pytest.mark.parametrize("index", range(len(NEVER_NEGATIVE)))
def test_what_is_called_never_negative_is_so(index: int) -> None:
    model, found = built(NEVER_NEGATIVE[index])
    assert found
    for seed in range(3):
        keras.utils.set_random_seed(seed)
        for weight in model.weights:
            if "float" in weight.dtype and "amax" not in weight.path:
                weight.assign(np.random.default_rng(seed).standard_normal(weight.shape))
        assert np.min(model(np.random.default_rng(seed).standard_normal((8, 6, 6, 4)) * 3)) >= 0


@pytest.mark.parametrize("index", range(len(MAY_BE_NEGATIVE)))
def test_possibly_negative_tensors_are_not_unsigned(index: int) -> None:
    assert not built(MAY_BE_NEGATIVE[index])[1]


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """A residual block with ReLUs, a linear branch and a Concatenate.

    One ReLU is capped; the Concatenate is of both signs.
    """
    keras.utils.set_random_seed(3)
    x = keras.Input((12, 12, 3), name="x")
    a = layers.ReLU(name="stem_relu")(
        layers.BatchNormalization(name="bn")(layers.Conv2D(8, 3, name="stem")(x))
    )
    b = layers.Conv2D(8, 3, padding="same", activation="relu", name="inner")(a)
    b = layers.Conv2D(8, 1, name="linear")(b)
    c = layers.ReLU(max_value=6.0, name="add_relu")(layers.Add(name="add")([a, b]))
    d = layers.MaxPooling2D(name="pool")(c)
    e = layers.Concatenate(name="concat")([layers.Conv2D(4, 1, name="left")(d), d])
    f = layers.GlobalAveragePooling2D(name="gap")(
        layers.Conv2D(6, 3, activation="relu", name="last")(e)
    )
    return keras.Model(x, layers.Dense(3, name="head")(f), name="net")


def data(count: int = 16) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 12, 12, 3)).astype(np.float32)


def quantized(model: keras.Model, *, unsigned: bool) -> keras.Model:
    result = quantize_model(model, custom_qdq_cases=[TensorRTQDQCase()], unsigned=unsigned)
    calibrate(result, data(), "max")
    return result


def test_the_plan_says_which_and_why(model: keras.Model) -> None:
    plan = plan_quantization(model, custom_qdq_cases=[TensorRTQDQCase()], unsigned=True)
    signs = {entry.tensor: entry.unsigned for entry in plan.quantizers}
    assert signs["stem_relu:0"]
    assert signs["inner:0"]
    assert signs["last:0"] or signs["gap:0"]
    assert not signs["x:0"]
    assert not signs["left:0"]
    assert not any(entry.unsigned for entry in plan.quantizers if entry.kind != "activation")
    # One range for what meets in the Concatenate, so one sign: that of the member that may be
    # negative.
    group = [entry for entry in plan.quantizers if entry.group]
    assert len(group) > 1
    assert not any(entry.unsigned for entry in group)
    assert "never negative: unsigned" in str(plan)
    assert QuantizationPlan.from_json(plan.to_json()) == plan
    signed = plan_quantization(model, custom_qdq_cases=[TensorRTQDQCase()])
    assert not any(entry.unsigned for entry in signed.quantizers)
    assert plan.diff(signed)
    older = signed.to_dict()
    for item in older["quantizers"]:
        del item["unsigned"]
    assert QuantizationPlan.from_dict(older) == signed


def test_finer_steps_bring_outputs_nearer_to_float(model: keras.Model, tmp_path: Path) -> None:
    x = data(64)
    errors = {
        u: float(np.mean((quantized(model, unsigned=u)(x) - model(x)) ** 2)) for u in (False, True)
    }
    assert errors[True] < errors[False]
    result = quantized(model, unsigned=True)
    result.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(load_model(tmp_path / "model.keras")(x), result(x))
    np.testing.assert_array_equal(
        keras.models.clone_model(result).count_params(), result.count_params()
    )


def test_existing_quantizer_keeps_its_sign() -> None:
    x = keras.Input((8, 8, 3), name="x")
    a = TensorQuantizer(name="mine", unsigned=True)(layers.Conv2D(4, 3, name="a")(x))
    model = keras.Model(x, layers.Conv2D(4, 1, name="b")(a))
    again = plan_quantization(model)
    assert "mine" not in [entry.name for entry in again.quantizers]  # nothing to add
    plan = plan_quantization(quantize_model(model, unsigned=True))
    assert not [entry for entry in plan.quantizers if entry.kind == "activation"]


@pytest.mark.parametrize("other", ["relu", None])
def test_quantizer_for_negative_tensor_becomes_signed(other: str | None) -> None:
    x = keras.Input((8, 8, 3), name="x")
    a = TensorQuantizer(name="mine", unsigned=True)(
        layers.Conv2D(4, 3, activation="relu", name="a")(x)
    )
    b = layers.Conv2D(4, 3, activation=other, name="b")(x)
    both = layers.Concatenate(name="both")([a, b])
    model = keras.Model(x, layers.Conv2D(2, 1, name="last")(both))
    result = quantize_model(model, custom_qdq_cases=[TensorRTQDQCase()])
    tied = model_quantizers(result)["mine"]
    assert tied.unsigned == (other == "relu")
    assert len(tied._inbound_nodes) == 3  # on both branches and on what the last layer reads


def test_plan_with_unsigned_weight_is_refused(model: keras.Model) -> None:
    plan = plan_quantization(model)
    changed = tuple(replace(entry, unsigned=entry.kind == "weight") for entry in plan.quantizers)
    with pytest.raises(PlanError, match="only activations can be"):
        apply_plan(model, replace(plan, quantizers=changed))


def test_it_trains(model: keras.Model) -> None:
    result = quantized(model, unsigned=True)
    before = [w.numpy() for w in result.trainable_weights]
    result.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    result.fit(data(), np.arange(16) % 3, epochs=1, verbose=0)
    assert all(
        np.any(a != w.numpy()) for a, w in zip(before, result.trainable_weights, strict=True)
    )


@pytest.mark.parametrize("target", ["openvino", "onnxruntime"])
def test_the_export_holds_the_learned_numbers(
    model: keras.Model, tmp_path: Path, target: Any
) -> None:
    plan = plan_quantization(model, custom_qdq_cases=[TensorRTQDQCase()], unsigned=True)
    result = apply_plan(model, plan)
    calibrate(result, data(), "max")
    path = tmp_path / "model.onnx"
    report = export_onnx(result, path, target=target, plan=plan)
    assert not report.findings
    parity = check_parity(result, path, data(), layers=True)
    assert parity.largest_difference == 0
    assert len(parity.layers) > 5
    assert all(layer.largest < 1e-4 for layer in parity.layers)
    graph = onnx.load(path).graph
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    scales = {
        n.name.rpartition("/")[0]: stored[n.input[1]]
        for n in graph.node
        if n.op_type == "QuantizeLinear"
    }
    types = {
        n.name.rpartition("/")[0]: stored[n.input[2]].dtype
        for n in graph.node
        if n.op_type == "QuantizeLinear"
    }
    for name, quantizer in model_quantizers(result).items():
        if quantizer.unsigned:
            assert types[name] == np.uint8
            assert scales[name] == quantizer.amax / np.float32(255)
    if target == "openvino":  # what an unsigned quantizer cuts off needs no node of its own
        assert not [node for node in graph.node if node.op_type == "Relu"]


def test_tensorrt_is_refused_before_anything_is_written(model: keras.Model, tmp_path: Path) -> None:
    with pytest.raises(
        ExportError,
        match=r"TensorRT runs no unsigned integers\. Received \d+ unsigned ones, such as",
    ):
        export_onnx(quantized(model, unsigned=True), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_an_unsigned_weight_is_refused(tmp_path: Path) -> None:
    from qat_lib.keras.wrappers import DenseQuantizeWrapper

    x = keras.Input((4,), name="x")
    wrapper = DenseQuantizeWrapper(
        layers.Dense(3, name="head"), weight_options={"unsigned": True, "narrow_range": False}
    )
    with pytest.raises(ExportError, match="Expected signed integers for a weight"):
        export_onnx(keras.Model(x, wrapper(x)), tmp_path / "model.onnx", target="openvino")


@pytest.mark.parametrize("unsigned", [False, True])
def test_integers_of_another_sign_are_found(
    model: keras.Model, tmp_path: Path, unsigned: bool
) -> None:
    path = tmp_path / "model.onnx"
    export_onnx(quantized(model, unsigned=unsigned), path, target="onnxruntime")
    assert not verify_onnx(path)
    proto = onnx.load(path)
    pair = next(
        n for n in proto.graph.node if n.op_type == "QuantizeLinear" and n.name.startswith("inner")
    )
    other = np.zeros((), np.int8 if unsigned else np.uint8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(other, "other"))
    for node in proto.graph.node:
        if node is pair or (node.op_type == "DequantizeLinear" and node.input[0] == pair.output[0]):
            node.input[2] = "other"
    del proto.graph.value_info[:]
    onnx.save(proto, path)
    (finding,) = verify_onnx(path)
    assert finding.code == "Q03"
    assert f"of type {other.dtype}" in finding.message


def network(maximum: Any, *between: Any) -> keras.Model:
    """A tensor read by a convolution and, maybe indirectly, a maximum."""
    keras.utils.set_random_seed(0)
    x = keras.Input((16, 16, 3), name="x")
    a = layers.Conv2D(8, 3, padding="same", activation="relu", name="a")(x)
    b = layers.Conv2D(8, 3, name="b")(a)
    y = a
    for layer in between:
        y = layer(y)
    y = layers.Dense(4, name="c")(layers.Flatten()(maximum(y)))
    return keras.Model(x, [layers.Flatten()(b), y], name="net")


def read_by_maximum(model: keras.Model, **options: Any) -> QuantizerEntry:
    plan = plan_quantization(model, **options)
    return next(entry for entry in plan.quantizers if entry.tensor == "a:0")


@pytest.mark.parametrize(
    "layers_of",
    [
        lambda: [layers.GlobalMaxPooling2D(name="pool")],
        lambda: [layers.MaxPooling2D(4, name="pool")],
        lambda: [
            layers.GlobalMaxPooling2D(name="pool"),
            layers.ZeroPadding2D(),
            layers.Dropout(0.5),
        ],
    ],
    ids=["global", "wide window", "behind a pad"],
)
def test_tensor_read_by_wide_maximum_is_unclipped(layers_of: Any) -> None:
    entry = read_by_maximum(network(*layers_of()))
    assert entry.calibrator == "max"
    assert entry.reason.endswith("; pool takes its maximum: not clipped")


@pytest.mark.parametrize("pool", [layers.MaxPooling2D, layers.GlobalAveragePooling2D])
def test_narrow_maximum_and_average_leave_calibrator_open(pool: Any) -> None:
    assert read_by_maximum(network(pool(name="pool"))).calibrator is None


def test_a_calibrator_that_is_asked_for_stays() -> None:
    spec = QuantizationSpec().add("b", calibrator="mse")
    entry = read_by_maximum(network(layers.GlobalMaxPooling2D(name="pool")), quantization_spec=spec)
    assert entry.calibrator == "mse"
    assert "not clipped" not in entry.reason


def test_tensor_behind_maximum_may_be_clipped() -> None:
    x = keras.Input((16, 16, 3), name="x")
    y = layers.Conv2D(8, 3, name="a")(x)
    y = layers.GlobalMaxPooling2D(name="pool")(layers.Softmax(name="other")(y))
    model = keras.Model(x, layers.Dense(4, name="c")(layers.Activation("tanh", name="tanh")(y)))
    assert {entry.calibrator for entry in plan_quantization(model).by_kind("activation")} == {None}


def test_percentile_calibration_keeps_what_global_maximum_reads() -> None:
    model = network(layers.GlobalMaxPooling2D(name="pool"))
    x = np.random.default_rng(0).standard_normal((32, 16, 16, 3)).astype(np.float32)
    quantized = quantize_model(model)
    report = calibrate(quantized, x, "percentile", percentile=99.9).tensors["a_quantizer"]
    assert (report.method, report.amax) == ("max", report.observed_max)
    expected, received = model(x)[1].numpy(), quantized(x)[1].numpy()
    assert 10 * np.log10(np.mean(expected**2) / np.mean((received - expected) ** 2)) > 30
