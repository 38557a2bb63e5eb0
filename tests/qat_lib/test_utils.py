"""The toolkit's helpers, and the example on its Basics page."""

import importlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf

from qat_lib import utils
from qat_lib.errors import ConfigError, ExportError, SpecError, UnsupportedModelError


@pytest.fixture(scope="module")
def residual() -> keras.Model:
    x = keras.Input((8, 8, 3), name="image")
    first = keras.layers.Conv2D(4, 3, padding="same", name="first")(x)
    y = keras.layers.Conv2D(4, 3, padding="same", name="second")(first)
    return keras.Model(x, keras.layers.ReLU(name="relu")(keras.layers.Add(name="add")([y, first])))


def ops(path: str) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.matrix
def test_the_basics_example_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    train_images = generator.random((64, 28, 28, 1), np.float32)
    train_labels = generator.integers(0, 10, 64)

    from qat_lib import quantize_model, utils

    assets = utils.CreateAssetsFolders("toolkit_basics")
    assets.add_folder("example")

    input_img = tf.keras.layers.Input(shape=(28, 28, 1))
    x = tf.keras.layers.Conv2D(filters=2, kernel_size=(3, 3))(input_img)
    x = tf.keras.layers.ReLU()(x)
    x = tf.keras.layers.Flatten()(x)
    x = tf.keras.layers.Dense(10)(x)
    model = tf.keras.Model(input_img, x)
    # The page leaves the compiling out; without it no Keras fits. The quantized model comes
    # compiled likewise.
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    model.fit(train_images, train_labels, batch_size=32, epochs=1, validation_split=0.1, verbose=0)
    tf.keras.models.save_model(model, assets.example.fp32_saved_model)
    utils.convert_saved_model_to_onnx(
        assets.example.fp32_saved_model, assets.example.fp32_onnx_model
    )

    q_model = quantize_model(model)
    q_model.fit(
        train_images, train_labels, batch_size=32, epochs=1, validation_split=0.1, verbose=0
    )
    tf.keras.models.save_model(q_model, assets.example.int8_saved_model)
    utils.convert_saved_model_to_onnx(
        assets.example.int8_saved_model, assets.example.int8_onnx_model
    )

    assert "QuantizeLinear" not in ops(assets.example.fp32_onnx_model)
    # Two activations as Q/DQ pairs, two weights as INT8 with a DequantizeLinear.
    quantized = ops(assets.example.int8_onnx_model)
    assert quantized.count("QuantizeLinear") == 2
    assert quantized.count("DequantizeLinear") == 4
    for keras_model, path in (
        (model, assets.example.fp32_onnx_model),
        (q_model, assets.example.int8_onnx_model),
    ):
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (output,) = session.run(None, {session.get_inputs()[0].name: train_images[:4]})
        # A value at a rounding tie may land one step further.
        np.testing.assert_allclose(output, keras_model(train_images[:4]), atol=0.02)


def test_asset_paths(tmp_path: Path) -> None:
    assets = utils.CreateAssetsFolders(str(tmp_path / "base"))
    assets.add_folder("run")
    run = assets.run
    assert run.base == str(tmp_path / "base" / "run")
    assert run.fp32_saved_model == os.path.join(run.fp32, "saved_model.keras")
    assert run.fp32_onnx_model == os.path.join(run.fp32, "original.onnx")
    assert run.int8_saved_model == os.path.join(run.int8, "saved_model.keras")
    assert run.int8_onnx_model == os.path.join(run.int8, "quantized.onnx")
    assert os.listdir(run.fp32) == os.listdir(run.int8) == []


def test_earlier_run_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for content in ("first", "second"):
        assets = utils.CreateAssetsFolders(tmp_path)
        assets.add_folder("run")
        Path(assets.run.fp32_onnx_model).write_text(content)
    with caplog.at_level(logging.WARNING, logger="qat_lib"):
        utils.CreateAssetsFolders(tmp_path).add_folder("run")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "run.1", "run.2"]
    assert [(tmp_path / f"run.{i}" / "fp32" / "original.onnx").read_text() for i in (1, 2)] == [
        "first",
        "second",
    ]
    assert "run.2" in caplog.text


@pytest.mark.parametrize("name", ["", "..", "a/b", "/tmp", "base", "add_folder"])
def test_non_folder_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="plain folder name"):
        utils.CreateAssetsFolders(tmp_path).add_folder(name)
    assert list(tmp_path.iterdir()) == []


def test_asset_folders_need_no_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys, qat_lib; qat_lib.utils.CreateAssetsFolders('a').add_folder('b'); "
        "assert 'keras' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=60)


def test_predecessors_in_the_order_of_the_inputs(residual: keras.Model) -> None:
    found = utils.find_my_predecessors(residual, "add")
    assert [p["name"] for p in found] == ["second", "first"]
    assert found[0]["class"] == "Conv2D"
    assert found[0]["module"] == type(residual.get_layer("second")).__module__
    assert found[0]["layer"] is residual.get_layer("second")
    assert utils.find_my_predecessors(residual, "image") == []


def test_successors_in_the_order_of_the_model(residual: keras.Model) -> None:
    assert [s["name"] for s in utils.find_my_successors(residual, "first")] == ["second", "add"]
    assert [s["name"] for s in utils.find_my_successors(residual, "image")] == ["first"]
    assert utils.find_my_successors(residual, "relu") == []


def test_a_reader_that_reads_twice_counts_twice() -> None:
    x = keras.Input((2,), name="x")
    model = keras.Model(x, keras.layers.Multiply(name="square")([x, x]))
    assert [s["name"] for s in utils.find_my_successors(model, "x")] == ["square", "square"]


def test_neighbours_of_a_nested_model() -> None:
    inner = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, name="hidden")], name="inner"
    )
    x = keras.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Dense(1, name="head")(inner(x)))
    assert [p["name"] for p in utils.find_my_predecessors(model, "head")] == ["hidden"]
    assert [p["name"] for p in utils.find_my_predecessors(model, "inner")] == ["x"]
    assert [s["name"] for s in utils.find_my_successors(model, "inner")] == ["head"]


def test_neighbours_of_what_is_not_there(residual: keras.Model) -> None:
    with pytest.raises(SpecError, match=r"no layer 'frist'.*Nearest: first"):
        utils.find_my_predecessors(residual, "frist")
    with pytest.raises(SpecError, match="as a string"):
        utils.find_my_successors(residual, 3)  # type: ignore[arg-type]

    class Subclassed(keras.Model):
        pass

    with pytest.raises(UnsupportedModelError, match="subclassed"):
        utils.find_my_successors(Subclassed(), "first")


def test_traveller_lists_nested_and_subclassed_layers(residual: keras.Model) -> None:
    class Subclassed(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.stem = keras.layers.Dense(2, name="stem")
            self.body = residual

    names = utils.KerasModelTraveller().get_layer_names(Subclassed())
    assert names == ["stem", "image", "first", "second", "add", "relu"]
    convolutions = utils.KerasModelTraveller().get_layer_names(residual, [keras.layers.Conv2D])
    assert convolutions == ["first", "second"]


def test_a_traveller_starts_anew_with_each_model(residual: keras.Model) -> None:
    traveller = utils.KerasModelTraveller()
    assert traveller.get_layer_names(residual) == traveller.get_layer_names(residual)


def test_the_traveller_writes_what_it_finds(
    residual: keras.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    utils.KerasModelTraveller().get_layer_information(residual, [keras.layers.Add])
    short = capsys.readouterr().out
    assert "layer name:add, layer class:<class" in short
    assert "first" not in short
    utils.KerasModelTraveller(print_layer_config=True).get_layer_information(
        residual, [keras.layers.Add]
    )
    assert "'name': 'add'" in capsys.readouterr().out


def test_the_traveller_refuses_what_is_no_model() -> None:
    with pytest.raises(UnsupportedModelError, match="Received: Dense"):
        utils.KerasModelTraveller().get_layer_names(keras.layers.Dense(1))


def test_a_saved_model_folder_converts(residual: keras.Model, tmp_path: Path) -> None:
    residual.export(str(tmp_path / "folder"), verbose=False)
    target = tmp_path / "new" / "model.onnx"
    utils.convert_saved_model_to_onnx(str(tmp_path / "folder"), str(target))
    x = np.random.default_rng(0).standard_normal((2, 8, 8, 3), np.float32)
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(output, residual(x), atol=1e-5)
    assert onnx.load(str(target)).opset_import[0].version == 13


def test_tensorflow_quantizers_in_a_folder_stay_pairs(tmp_path: Path) -> None:
    """As the folders that NVIDIA's toolkit wrote: QuantizeAndDequantizeV2 on input and weight."""
    module = tf.Module()
    weight = np.random.default_rng(0).standard_normal((4, 3), np.float32)

    @tf.function(input_signature=[tf.TensorSpec((2, 4), tf.float32, name="x")])
    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        quantized = tf.quantization.quantize_and_dequantize_v2(x, -4.0, 4.0, range_given=True)
        kernel = tf.quantization.quantize_and_dequantize_v2(
            tf.constant(weight), -3.0, 3.0, range_given=True, narrow_range=True
        )
        return {"y": tf.matmul(quantized, kernel)}

    tf.saved_model.save(module, str(tmp_path / "folder"), signatures=serve)
    target = str(tmp_path / "model.onnx")
    utils.convert_saved_model_to_onnx(str(tmp_path / "folder"), target)
    assert ops(target).count("QuantizeLinear") == ops(target).count("DequantizeLinear") == 2


def test_failed_conversion_of_a_folder_keeps_the_old_file(
    residual: keras.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    residual.export(str(tmp_path / "folder"), verbose=False)
    target = tmp_path / "new" / "model.onnx"
    target.parent.mkdir()
    target.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        utils.convert_saved_model_to_onnx(tmp_path / "folder", target)
    assert target.read_bytes() == b"old"
    assert list(target.parent.iterdir()) == [target]


def test_saved_model_folder_has_no_qatline_form(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(ExportError, match="Expected form='toolkit' for a SavedModel folder"):
        utils.convert_saved_model_to_onnx(tmp_path, tmp_path / "model.onnx", form="qatline")
    assert not (tmp_path / "model.onnx").exists()


def test_quantized_model_in_folder_is_refused(residual: keras.Model, tmp_path: Path) -> None:
    from qat_lib import quantize_model

    quantize_model(residual).export(str(tmp_path / "folder"), verbose=False)
    with pytest.raises(ExportError, match=r"Save the quantized model as a \.keras file"):
        utils.convert_saved_model_to_onnx(tmp_path / "folder", tmp_path / "model.onnx")


def test_a_path_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="neither"):
        utils.convert_saved_model_to_onnx(tmp_path, tmp_path / "model.onnx")
    with pytest.raises(ExportError, match="neither"):
        utils.convert_saved_model_to_onnx(tmp_path / "missing.keras", tmp_path / "model.onnx")
    (tmp_path / "broken.keras").write_bytes(b"no zip")
    with pytest.raises(UnsupportedModelError, match="can't be loaded"):
        utils.convert_saved_model_to_onnx(tmp_path / "broken.keras", tmp_path / "model.onnx")


TOOLKIT_NAMES = [
    "QuantizationSpec",
    "quantize_model",
    "BaseQuantizeWrapper",
    "WeightedBaseQuantizeWrapper",
    "NonWeightedBaseQuantizeWrapper",
    "CustomQDQInsertionCase",
    "CreateAssetsFolders",
    "convert_saved_model_to_onnx",
    "convert_keras_model_to_onnx",
    "quantize.LayerConfig",
    "quantize.QuantizationSpec",
    "quantize.quantize_model",
    "custom_qdq_cases.ResNetV1QDQCase",
    "custom_qdq_cases.check_is_quantizable_by_layer_name",
    "quantize_wrappers.Conv2DQuantizeWrapper",
    "utils.KerasModelTraveller",
    "utils.find_my_predecessors",
    "utils.find_my_successors",
    "utils.CreateAssetsFolders",
]


@pytest.mark.parametrize("name", TOOLKIT_NAMES)
def test_every_name_is_where_toolkit_has_it(name: str) -> None:
    module, _, attribute = f"qat_lib.{name}".rpartition(".")
    assert callable(getattr(importlib.import_module(module), attribute))
