"""Tensors read by a wide maximum: unclipped ranges, with reasons."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from qat_lib import QuantizationSpec, calibrate, plan_quantization, quantize_model
from qat_lib.core.plan import QuantizerEntry


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
