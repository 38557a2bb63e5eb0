"""auto: the range that costs the readers of a tensor least."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import qat_lib
from qat_lib.calibration.reader_errors import SAMPLES, ReaderErrors
from qat_lib.calibrators.methods import RIVALS

FAR, NEAR = 100.0, 1.0


def data(count: int = 20) -> np.ndarray:
    """Return inputs whose second channel reaches 100 times as far as the first."""
    values = np.random.default_rng(0).uniform(-1, 1, (count, 6, 6, 2))
    return (values * (NEAR, FAR)).astype(np.float32)


def model_reading(channel: int, *, pad: bool = False) -> Any:
    """Return a quantized convolution that computes with one channel of two."""
    x = inputs = keras.Input((6, 6, 2), name="image")
    x = layers.ZeroPadding2D(1, name="pad")(x) if pad else x
    conv = layers.Conv2D(1, 1, use_bias=False, name="conv")
    model = keras.Model(inputs, conv(x))
    conv.set_weights([np.eye(2, dtype=np.float32)[channel].reshape(1, 1, 2, 1)])
    return qat_lib.quantize_model(model)


RANGES = {"image_quantizer": {"narrow": NEAR, "wide": FAR}}


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize(("channel", "best"), [(0, "narrow"), (1, "wide")])
def test_the_range_follows_what_the_reader_computes_with(
    channel: int, best: str, pad: bool
) -> None:
    errors = ReaderErrors(model_reading(channel, pad=pad))
    assert len(list(errors.watched([data()]))) == 1
    (name,) = errors(ranges_of(errors))
    assert errors(ranges_of(errors)) == {name: best}


def ranges_of(errors: ReaderErrors) -> dict[str, dict[str, float]]:
    quantizers = qat_lib.model_quantizers(errors._model)
    (name,) = (name for name, each in quantizers.items() if not each.of_weight)
    return {name: RANGES["image_quantizer"]}


def test_watched_keeps_the_first_samples_and_yields_all() -> None:
    errors = ReaderErrors(model_reading(0))
    given = [data(5)] * 5
    assert [len(batch) for batch in errors.watched(given)] == [5] * 5
    assert sum(map(len, errors._batches)) == SAMPLES


def test_calibrate_by_auto_names_the_method_of_each_tensor() -> None:
    model = model_reading(1)
    report = qat_lib.calibrate(model, data(), "auto")
    (statistics,) = report.tensors.values()
    assert statistics.method in RIVALS
    assert statistics.amax == pytest.approx(FAR, rel=0.05)
    narrow = qat_lib.calibrate(model_reading(0), data(), "percentile", percentile=70.0)
    assert statistics.amax > next(iter(narrow.tensors.values())).amax


def test_auto_of_one_quantizer_leaves_the_others_to_the_method() -> None:
    x = keras.Input((6, 6, 2), name="image")
    y = layers.Conv2D(2, 1, name="first")(x)
    model = keras.Model(x, layers.Conv2D(2, 1, name="second")(y))
    spec = qat_lib.QuantizationSpec().add("second", calibrator="auto")
    quantized = qat_lib.quantize_model(model, quantization_spec=spec)
    report = qat_lib.calibrate(quantized, data(), "max")
    methods = [statistics.method for statistics in report.tensors.values()]
    assert methods[0] == "max"
    assert methods[1] in RIVALS


def test_a_tensor_that_an_addition_reads_counts_with_its_own_error() -> None:
    a, b = keras.Input((6, 6, 2), name="a"), keras.Input((6, 6, 2), name="b")
    model = keras.Model([a, b], layers.Add(name="add")([a, b]))
    spec = qat_lib.QuantizationSpec().add("add")
    quantized = qat_lib.quantize_model(model, "partial", spec)
    errors = ReaderErrors(quantized)
    list(errors.watched([[data(), data()]]))
    names = list(qat_lib.model_quantizers(quantized))
    assert len(names) == 2
    best = errors(dict.fromkeys(names, RANGES["image_quantizer"]))
    assert best == dict.fromkeys(names, "wide")


def test_a_model_without_a_graph_has_no_choice() -> None:
    class Own(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    assert ReaderErrors(Own())({"x": {"narrow": 1.0}}) == {}
