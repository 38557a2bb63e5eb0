"""A file that computes something else than its model never gets its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
import pytest
import torch
from keras import layers

import qat_lib
import qat_lib.torch
from qat_lib.errors import ExportError, VerificationError
from qat_lib.export import comparing, finish, self_check
from qat_lib.export.finish import lower

IMAGE = (8, 8, 3)


def convolutions() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = keras.Input(IMAGE)
    y = layers.Conv2D(4, 3, padding="same", activation="relu", name="first")(x)
    y = layers.Conv2D(4, 3, padding="same", name="second")(y)
    return keras.Model(x, layers.GlobalAveragePooling2D(name="mean")(y))


def export_keras(path: Path, *, quantized: bool, **options: Any) -> Any:
    model = convolutions()
    if quantized:
        model = qat_lib.quantize_model(model)
        qat_lib.calibrate(model, np.random.default_rng(0).normal(size=(8, *IMAGE)).astype("f4"))
    return qat_lib.export_onnx(model, path, **options)


def export_torch(path: Path, *, quantized: bool, **options: Any) -> Any:
    torch.manual_seed(0)
    conv, relu = torch.nn.Conv2d, torch.nn.ReLU()
    module: Any = torch.nn.Sequential(conv(3, 4, 3, padding=1), relu, conv(4, 4, 3, padding=1))
    images = torch.randn(8, 3, 8, 8)
    if quantized:
        module = qat_lib.torch.quantize_model(module, example_input=images)
        qat_lib.torch.calibrate(module, [images])
    return qat_lib.torch.export_onnx(module, path, example_input=images, **options)


def break_padding(monkeypatch: pytest.MonkeyPatch, shift: int) -> None:
    """Let the last convolution read its input shifted: a valid graph of the same shapes."""

    def lower_wrongly(*args: Any, **options: Any) -> ir.Model:
        graph = lower(*args, **options)
        conv = [node for node in graph.graph if node.op_type == "Conv"][-1]
        conv.attributes["pads"] = ir.AttrInt64s("pads", [1 - shift, 1, 1 + shift, 1])
        return graph

    monkeypatch.setattr(finish, "lower", lower_wrongly)


@pytest.mark.matrix_except("export_keras-True", "export_torch-True")
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("export", [export_keras, export_torch])
def test_export_refuses_graph_of_other_outputs(
    export: Any, quantized: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_padding(monkeypatch, 0)
    path = tmp_path / "model.onnx"
    assert export(path, quantized=quantized).findings == ()
    path.unlink()
    break_padding(monkeypatch, 1)
    with pytest.raises(
        VerificationError, match=r"model\.onnx computes other outputs .* differ by .* No file"
    ):
        export(path, quantized=quantized)
    assert list(tmp_path.iterdir()) == []


def test_refusal_names_first_differing_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_padding(monkeypatch, 1)
    with pytest.raises(VerificationError, match="starts at the layer 'second'"):
        export_keras(tmp_path / "model.onnx", quantized=False)


def test_a_single_wrong_value_is_stated_with_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 20_000
    wrong = np.zeros(size, np.float32)
    wrong[7] = 2e-2

    def lower_wrongly(*args: Any, **options: Any) -> ir.Model:
        graph = lower(*args, **options)
        (output,) = graph.graph.outputs
        added = ir.Value(name="wrong", const_value=ir.tensor(wrong, name="wrong"))
        graph.graph.register_initializer(added)
        shifted = ir.Node("", "Add", [output, added], num_outputs=1)
        graph.graph.append(shifted)
        graph.graph.outputs[0] = shifted.outputs[0]
        shifted.outputs[0].shape, shifted.outputs[0].dtype = output.shape, output.dtype
        output.name, shifted.outputs[0].name = "right", output.name
        return graph

    monkeypatch.setattr(finish, "lower", lower_wrongly)
    x = keras.Input((size,))
    with pytest.raises(VerificationError, match=r"a value differs by 0\.02, .* 0\.0001 of that"):
        qat_lib.export_onnx(keras.Model(x, layers.ReLU()(x)), tmp_path / "model.onnx")


@pytest.mark.matrix_except("options0", "options3")
@pytest.mark.parametrize(
    "options",
    [
        {"float_precision": "fp16"},
        {"batch_size": 3},
        {"channels_first_input": True},
        {"target": "openvino"},
        {"preprocessing": qat_lib.Preprocessing(image_shape=IMAGE, scale=1 / 255)},
        {
            "preprocessing": qat_lib.Preprocessing(image_shape=IMAGE, scale=1 / 255),
            "embed_preprocessing": True,
        },
    ],
)
def test_every_kind_of_export_is_compared(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    assert export_keras(path, quantized=True, **options).findings == ()
    break_padding(monkeypatch, 1)
    with pytest.raises(VerificationError, match="computes other outputs"):
        export_keras(tmp_path / "other.onnx", quantized=True, **options)


@pytest.mark.parametrize("unsigned", [False, True])
def test_random_inputs_fill_range_of_quantizer(
    unsigned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[np.ndarray] = []

    def compare(open_reference: Any, path: Path, data: list[np.ndarray], **options: Any) -> Any:
        given.extend(data)
        return comparing.compare_with(open_reference, path, data, **options)

    monkeypatch.setattr(self_check, "compare_with", compare)
    x = keras.Input(IMAGE)
    model = keras.Model(x, layers.Conv2D(4, 3)(layers.ReLU()(x) if unsigned else x))
    model = qat_lib.quantize_model(model, unsigned=unsigned)
    images = np.random.default_rng(0).uniform(0, 10, size=(8, *IMAGE)).astype("f4")
    qat_lib.calibrate(model, images)
    qat_lib.export_onnx(model, tmp_path / "model.onnx", target="openvino")
    (values,) = given
    assert values.max() == pytest.approx(10, rel=0.2)
    assert values.min() == pytest.approx(0 if unsigned else -10, rel=0.2, abs=0.5)
    # Half of the values are in each half of the range.
    assert values.mean() == pytest.approx((values.min() + values.max()) / 2, abs=1)


def test_file_that_cannot_run_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise ExportError("ONNX Runtime can't load it")

    monkeypatch.setattr(comparing, "ReferenceSession", refuse)
    (finding,) = export_keras(tmp_path / "model.onnx", quantized=False).findings
    assert (finding.code, finding.severity) == ("C02", "warning")
    assert "not compared with its model: ONNX Runtime can't load it." in finding.message
    assert "was not compared" in caplog.text
    assert (tmp_path / "model.onnx").is_file()


class Noise(torch.nn.Module):
    """Adds noise in inference, too."""

    def forward(self, x: Any) -> Any:
        return x + torch.randn_like(x)


def test_random_model_is_not_compared(tmp_path: Path) -> None:
    path, example = tmp_path / "model.onnx", torch.zeros(2, 4)
    (finding,) = qat_lib.torch.export_onnx(Noise(), path, example_input=example).findings
    assert finding.code == "C02"
    assert "other outputs at each call" in finding.message


class Chaotic(torch.nn.Module):
    """Amplifies the rounding of its sums."""

    def __init__(self, gain: float = 1e6) -> None:
        super().__init__()
        self.sums, self.gain = torch.nn.Linear(4096, 32), gain

    def forward(self, x: Any) -> Any:
        return torch.sin(self.gain * self.sums(x))


def test_model_that_follows_rounding_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    path, example = tmp_path / "model.onnx", torch.zeros(2, 4096)
    (finding,) = qat_lib.torch.export_onnx(Chaotic(), path, example_input=example).findings
    assert (finding.code, finding.severity) == ("C02", "warning")
    assert "rounding changes its outputs by" in finding.message
    # A difference beyond the noise remains an error.
    monkeypatch.setattr(self_check, "_noise", lambda *_: 0.01)
    with pytest.raises(VerificationError, match="computes other outputs"):
        qat_lib.torch.export_onnx(Chaotic(), path, example_input=example)


def test_single_values_may_differ_by_the_noise_of_a_float_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module, path, example = Chaotic(1e3), tmp_path / "model.onnx", torch.randn(2, 4096)
    qat_lib.torch.export_onnx(module, path, example_input=example)
    report = qat_lib.torch.check_parity(module, path, example.numpy())
    assert report.passed
    assert report.largest_difference > comparing.FLOAT_TOLERANCE * report.magnitude
    # The same difference in a model without noise is an error.
    monkeypatch.setattr(comparing, "NOISE_FACTOR", 0)
    assert not qat_lib.torch.check_parity(module, path, example.numpy()).passed


def test_noise_of_integer_inputs_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layers = [part for _ in range(8) for part in (torch.nn.Linear(64, 64), torch.nn.GELU())]
    network = torch.nn.Sequential(torch.nn.Embedding(20, 64), *layers).eval()
    tokens = torch.randint(0, 20, (16, 12))
    quantized = qat_lib.torch.quantize_model(
        network, custom_qdq_cases="auto", example_input=tokens[:2]
    )
    qat_lib.torch.calibrate(quantized, [tokens])
    path = tmp_path / "model.onnx"
    qat_lib.torch.export_onnx(quantized, path, example_input=tokens[:2])
    monkeypatch.setattr(comparing, "QUANTIZED_BOUND", 1e-9)
    monkeypatch.setattr(comparing, "FLOAT_BOUND", 1e-9)
    report = qat_lib.torch.check_parity(quantized, path, tokens.numpy())
    assert 1e-9 < report.allowed <= comparing.NOISE_BOUND


def open_network() -> keras.Model:
    x = keras.Input((None, None, 3))
    return keras.Model(x, layers.Conv2D(4, 3, padding="same")(x))


def fixed_inside() -> keras.Model:
    """A model of an open image size around one of a fixed size."""
    inner = keras.Input((128, 128, 3))
    x = keras.Input((None, None, 3))
    return keras.Model(x, keras.Model(inner, layers.Conv2D(4, 3)(inner))(x))


def short_sequences() -> keras.Model:
    """A model of at most 20 tokens of a vocabulary of 2."""
    tokens = keras.Input((None,), dtype="int32")
    table = layers.Embedding(2, 4, mask_zero=True)(tokens)
    places = layers.Embedding(20, 4)(keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1) - 1)
    return keras.Model(tokens, layers.Dense(3)(table + places))


def named_inputs() -> keras.Model:
    one, two = keras.Input((4,), name="one"), keras.Input((6,), name="two")
    made = layers.Dense(3)(layers.Concatenate()([one, two]))
    return keras.Model({"two": two, "one": one}, {"made": made})


def indices() -> keras.Model:
    x = keras.Input((8,))
    return keras.Model(x, keras.ops.top_k(layers.Dense(9)(x), 3))


def not_finite() -> keras.Model:
    x = keras.Input((8,))
    return keras.Model(x, keras.ops.log(layers.Dense(9)(x)))


@pytest.mark.parametrize(
    "make", [open_network, fixed_inside, short_sequences, named_inputs, indices, not_finite]
)
def test_inputs_and_outputs_of_all_kinds_are_compared(make: Any, tmp_path: Path) -> None:
    assert qat_lib.export_onnx(make(), tmp_path / "model.onnx").findings == ()


class Tokens(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, ids: Any, mask: Any) -> Any:
        return {"out": self.table(ids) * mask["m"]}


def test_torch_arguments_by_name_are_compared(tmp_path: Path) -> None:
    example = {"mask": {"m": torch.ones(2, 5, 1)}, "ids": torch.randint(2, 10, (2, 5))}
    path = tmp_path / "model.onnx"
    assert qat_lib.torch.export_onnx(Tokens(), path, example_input=example).findings == ()
