"""Outputs keep their names.

Losses, metrics, targets and ONNX files go by them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
from keras import layers

from qat_lib import export_onnx, load_model, quantize_model
from qat_lib.keras.wrappers import BaseQuantizeWrapper


def one() -> keras.Model:
    x = keras.Input((6,), name="x")
    return keras.Model(
        x,
        layers.Dense(3, activation="softmax", name="predictions")(
            layers.Dense(5, name="hidden")(x)
        ),
    )


def sequential() -> keras.Model:
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(5), layers.Dense(3, activation="softmax", name="last")]
    )


def nested() -> keras.Model:
    x = keras.Input((6,), name="x")
    return keras.Model(
        x, keras.Sequential([keras.Input((6,)), layers.Dense(3, name="inner")], name="head")(x)
    )


def in_half() -> keras.Model:
    x = keras.Input((6,), name="x")
    return keras.Model(x, layers.Dense(3, name="predictions", dtype="mixed_float16")(x))


def several() -> keras.Model:
    x = keras.Input((6,), name="x")
    y = layers.Dense(5, name="hidden", activation="relu")(x)
    first = layers.Dense(2, name="first")(y)
    return keras.Model(x, [first, layers.Dense(3, name="second")(layers.Concatenate()([first, y]))])


def by_key() -> keras.Model:
    model = several()
    return keras.Model(model.inputs, dict(zip("ab", model.outputs, strict=True)))


def one_layer_twice() -> keras.Model:
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    dense = layers.Dense(3, name="both")
    return keras.Model([a, b], [dense(a), dense(b)])


def not_wrapped() -> keras.Model:
    x = keras.Input((6,), name="x")
    return keras.Model(x, layers.Softmax(name="soft")(layers.Dense(3, name="head")(x)))


def renamed_in_between() -> keras.Model:
    """The output's layer has the name of its nested model."""
    x = keras.Input((6,), name="x")
    inner = keras.Sequential([keras.Input((5,)), layers.Dense(3, name="same")], name="same")
    return keras.Model(x, inner(layers.Dense(5, name="hidden")(x)))


def names(model: Any) -> list[str]:
    return list((model._functional if isinstance(model, keras.Sequential) else model).output_names)


MODELS = [
    one,
    sequential,
    nested,
    in_half,
    several,
    by_key,
    one_layer_twice,
    not_wrapped,
    renamed_in_between,
]


@pytest.mark.parametrize("make", MODELS)
def test_names_and_types_are_the_original_s(
    make: Callable[[], keras.Model], tmp_path: Path
) -> None:
    model = make()
    quantized = quantize_model(model)
    again = quantize_model(quantized)
    quantized.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras")
    for copy in (quantized, again, loaded, keras.models.clone_model(quantized)):
        assert copy.output_names == names(model)
        assert [t.dtype for t in keras.tree.flatten(copy.outputs)] == [
            t.dtype for t in model.outputs
        ]
    assert any(isinstance(layer, BaseQuantizeWrapper) for layer in quantized.layers)


@pytest.mark.parametrize("make", [one, sequential, nested, several, by_key, one_layer_twice])
def test_names_in_onnx_are_the_original_s(make: Callable[[], keras.Model], tmp_path: Path) -> None:
    model = make()
    written = []
    for source in (model, quantize_model(model)):
        export_onnx(source, tmp_path / "model.onnx")
        written.append([value.name for value in onnx.load(tmp_path / "model.onnx").graph.output])
    assert written[0] == written[1]
    assert len(set(written[0])) == len(model.outputs)


def test_wrapper_is_found_by_its_own_name() -> None:
    quantized = quantize_model(one())
    assert quantized.get_layer("quant_predictions").layer.name == "predictions"
    assert not quantized.get_layer("predictions").weights


@pytest.mark.parametrize("compile_before", [True, False])
def test_a_dictionary_for_one_output(compile_before: bool) -> None:
    """Losses and metrics by output name, as for the original.

    Keras takes no targets by name there.
    """
    model = one()
    options = {
        "loss": {"predictions": "sparse_categorical_crossentropy"},
        "metrics": {"predictions": ["accuracy"]},
    }
    if compile_before:
        model.compile("sgd", **options)
    quantized = quantize_model(model)
    if not compile_before:
        quantized.compile("sgd", **options)
    x, y = np.ones((8, 6), np.float32), np.arange(8) % 3
    assert set(quantized.fit(x, y, class_weight={0: 1, 1: 2, 2: 1}, verbose=0).history) == {
        "loss",
        "accuracy",
    }
    assert set(quantized.evaluate(x, y, return_dict=True, verbose=0)) == {"loss", "accuracy"}


def test_losses_by_output_name() -> None:
    model = several()
    quantized = quantize_model(model)
    quantized.compile("sgd", {"first": "mse", "second": "mae"}, metrics={"first": ["mae"]})
    history = quantized.fit(
        np.ones((4, 6)), {"first": np.zeros((4, 2)), "second": np.zeros((4, 3))}, verbose=0
    )
    assert {"first_loss", "second_loss", "first_mae"} <= set(history.history)
