"""Recurrent layers of Keras from the plan to the engine."""

import keras
import numpy as np
import pytest

import qat_lib
from qat_lib.engines.spec import BuildSpec, ShapeProfile

L = keras.layers
STEPS, IMAGES = (6, 4), (4, 6, 6, 2)
LAYERS = {
    "lstm": (STEPS, lambda x: L.LSTM(3)(x)),
    "lstm backwards": (STEPS, lambda x: L.LSTM(3, go_backwards=True)(x)),
    "bidirectional lstm": (STEPS, lambda x: L.Bidirectional(L.LSTM(3, return_sequences=True))(x)),
    "masked lstm": (STEPS, lambda x: L.LSTM(3)(L.Masking()(x))),
    "gru": (STEPS, lambda x: L.GRU(3)(x)),
    "gru of each step": (STEPS, lambda x: L.GRU(3, return_sequences=True)(x)),
    "gru reset before": (STEPS, lambda x: L.GRU(3, reset_after=False)(x)),
    "gru unrolled": (STEPS, lambda x: L.GRU(3, unroll=True)(x)),
    "bidirectional gru": (STEPS, lambda x: L.Bidirectional(L.GRU(3))(x)),
    "masked gru": (STEPS, lambda x: L.GRU(3)(L.Masking()(x))),
    "gru of an open length": ((None, 4), lambda x: L.GRU(3)(x)),
    "simple": (STEPS, lambda x: L.SimpleRNN(3)(x)),
    "cells": (STEPS, lambda x: L.RNN([L.GRUCell(3), L.SimpleRNNCell(2)])(x)),
    "of each step": (STEPS, lambda x: L.TimeDistributed(L.Dense(3))(x)),
    "of each step of an open length": (
        (None, 4),
        lambda x: L.LSTM(3)(L.TimeDistributed(L.Dense(3))(x)),
    ),
    "masked, of each step": (
        (3, 6, 4),
        lambda x: 1 * L.TimeDistributed(L.LSTM(3))(x, mask=keras.ops.greater(x[..., 0], 0)),
    ),
    "convlstm1d": ((4, 6, 2), lambda x: L.ConvLSTM1D(3, 3)(x)),
    "convlstm2d": (IMAGES, lambda x: L.ConvLSTM2D(3, 3, padding="same")(x)),
    "convlstm3d": ((3, 4, 4, 4, 2), lambda x: L.ConvLSTM3D(2, 3, padding="same")(x)),
}


# Recurrent layers stay in float in both forms: two float models are enough.
@pytest.mark.matrix_except("lstm-float", "cells-quantized", "convlstm1d-quantized")
@pytest.mark.parametrize(
    ("name", "quantized"),
    [
        *(pytest.param(name, True, id=f"{name}-quantized") for name in LAYERS),
        *(pytest.param(name, False, id=f"{name}-float") for name in ("lstm", "gru reset before")),
    ],
)
def test_recurrent_layers_become_engines(name, quantized, tmp_path):
    keras.utils.set_random_seed(0)
    shape, build = LAYERS[name]
    x = keras.Input(shape, name="x")
    # A Dense layer behind it is what gets quantized.
    model = keras.Model(x, L.Dense(3)(L.Flatten()(build(x))))
    data = np.random.default_rng(0).normal(size=(3, *[n or 6 for n in shape])).astype(np.float32)
    if name.startswith("masked"):
        data[:, 4:] = 0
    if quantized:
        model = qat_lib.quantize_model(model)
        qat_lib.calibrate(model, data)
    path = tmp_path / "model.onnx"
    qat_lib.export_onnx(model, path, target="openvino")
    report = qat_lib.check_parity(model, path, data)
    assert report.passed, report
    profile = ShapeProfile(minimum=(1, 6, 4), optimum=(1, 6, 4), maximum=(2, 6, 4))
    shapes = {"x": profile} if None in shape else {}
    spec = BuildSpec(backend="openvino", max_batch_size=2, shapes=shapes)
    assert qat_lib.build_engine(path, spec).path.is_file()
