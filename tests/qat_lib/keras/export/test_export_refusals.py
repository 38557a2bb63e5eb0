"""What an export refuses, and what it leaves behind then."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

import qat_lib
from qat_lib.errors import ExportError, PlanError, UnsupportedModelError, VerificationError

keras = pytest.importorskip("keras")
layers = keras.layers


def subclassed():
    class Custom(keras.Model):
        def call(self, x):
            return x

    model = Custom()
    model(np.zeros((1, 2), np.float32))
    return model


def enlarged():
    x = keras.Input((None, None, 3))
    return keras.Model(x, layers.UpSampling2D(2, interpolation="bilinear", name="up")(x))


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (enlarged, {}, ExportError, r"The layer 'up' \(UpSampling2D\) does, .* fixed input size"),
        (subclassed, {}, UnsupportedModelError, "Functional or Sequential"),
        (lambda: keras.Sequential([layers.Dense(2)]), {}, UnsupportedModelError, "built model"),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"opset": 12},
            ExportError,
            "opset from 13",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"opset": 99},
            ExportError,
            "opset from 13",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"weights": "int4"},
            ExportError,
            "weights",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"target": "tpu"},
            ExportError,
            "target",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"batch_size": 0},
            ExportError,
            "batch size",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"embed_preprocessing": True},
            ExportError,
            "needs the preprocessing",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            {"metadata": {"target": "x"}},
            ExportError,
            "metadata keys",
        ),
    ],
)
def test_what_can_not_be_exported_is_said(make, options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        qat_lib.export_onnx(make(), tmp_path / "no.onnx", **options)
    assert list(tmp_path.iterdir()) == []


def test_other_bit_widths_are_refused(tmp_path):
    x = keras.Input((4,))
    model = keras.Model(x, qat_lib.TensorQuantizer(num_bits=4, name="four")(x))
    with pytest.raises(ExportError, match="8 bits"):
        qat_lib.export_onnx(model, tmp_path / "four.onnx")


def test_failed_verification_keeps_old_file(quantized, plan, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    wrong = plan.without(plan.quantizers[0].name)
    with pytest.raises(VerificationError, match="Q02"):
        qat_lib.export_onnx(quantized, path, plan=wrong)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_export_into_a_read_only_folder_is_refused(network, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ExportError, match="write"):
        qat_lib.export_onnx(network, tmp_path / "model.onnx")


def test_export_below_a_file_is_refused(network, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="write"):
        qat_lib.export_onnx(network, tmp_path / "file" / "model.onnx")


def test_large_weights_go_into_another_file(quantized, plan, images, tmp_path, monkeypatch):
    from qat_lib.export import finish

    monkeypatch.setattr(finish, "EXTERNAL_DATA_ABOVE", 100)
    path = tmp_path / "big.onnx"
    report = qat_lib.export_onnx(quantized, path, plan=plan)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["big.onnx", "big.onnx.data"]
    assert report.bytes == sum(p.stat().st_size for p in tmp_path.iterdir())
    assert qat_lib.verify_onnx(path, plan) == []
    assert qat_lib.check_parity(quantized, path, images, layers=True).passed
    (tmp_path / "big.onnx.data").unlink()
    with pytest.raises(ExportError, match="external data"):
        qat_lib.verify_onnx(path)


@pytest.mark.slow
def test_more_than_two_gigabytes(tmp_path):
    available = (
        int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    )
    if available < 14e9:
        pytest.skip(f"needs 14 GB of free memory, {available / 1e9:.1f} GB are there")
    x = keras.Input((8,), dtype="int32")
    y = keras.layers.GlobalAveragePooling1D()(
        keras.layers.Embedding(540_000, 1024, embeddings_initializer="ones")(x)
    )
    model = keras.Model(x, keras.layers.Dense(4)(keras.layers.Dense(32, activation="relu")(y)))
    data = np.arange(64, dtype=np.int32).reshape(8, 8)
    quantized = qat_lib.quantize_model(model)
    qat_lib.calibrate(quantized, data, method="max")
    path = tmp_path / "big.onnx"
    assert qat_lib.export_onnx(quantized, path).bytes > 2**31
    assert path.stat().st_size < 100_000
    assert qat_lib.verify_onnx(path) == []
    assert qat_lib.analyze_onnx(path).int8_layers == 2
    assert qat_lib.check_parity(quantized, path, data, layers=True).passed


def test_other_plan_is_refused_before_export(network, tmp_path):
    with pytest.raises(PlanError, match="Received: int"):
        qat_lib.export_onnx(network, tmp_path / "model.onnx", plan=3)
    assert not (tmp_path / "model.onnx").exists()
