"""Keras's graph records: read in one module, with each call's place.

The graph made of them knows where each call stands.
"""

from __future__ import annotations

import ast
import weakref
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf

import qat_lib
from qat_lib.errors import UnsupportedModelError
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.keras.structure import (
    count_calls,
    layers_inside,
    layers_of,
    maker_of,
    run_eagerly,
    with_graph,
)

PACKAGES = Path(qat_lib.__file__).parent.parent
PRIVATE = {
    *("_nodes_by_depth", "_functional", "_flatten_layers", "_inbound_nodes", "_outbound_nodes"),
    *("_operations", "_keras_history", "_inputs_struct", "_outputs_struct", "_run_through_graph"),
}


def nested() -> keras.Model:
    x = keras.Input((4,))
    inner = keras.Model(x, keras.layers.Dense(4, name="dense")(x), name="inner")
    outer_input = keras.Input((4,), name="x")
    outer = keras.layers.Dense(2, name="dense")(inner(inner(outer_input)))
    return keras.Model(outer_input, outer, name="outer")


class Custom(keras.Model):
    def call(self, x):
        return x


@pytest.mark.parametrize("package", ["qat_lib", "components", "pipelines"])
def test_private_records_read_in_one_module(package: str) -> None:
    readers = set()
    for path in (PACKAGES / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in PRIVATE:
                readers.add(path.name)
    assert readers == ({"structure.py"} if package == "qat_lib" else set())


def test_layer_graph_paths() -> None:
    calls = LayerGraph(nested()).calls
    assert [call.path for call in calls] == ["x", "inner/dense", "inner/dense", "dense"]
    assert [call.name for call in calls] == ["x", "dense", "dense@1", "dense_1"]


def test_subclassed_model_within_is_one_call() -> None:
    x = keras.Input((4,), name="x")
    model = keras.Model(x, Custom(name="custom")(x))
    assert [call.layer for call in LayerGraph(model).calls] == ["x", "custom"]


class Net(keras.Model):
    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)
        self.first, self.last = keras.layers.Dense(5), keras.layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.last(keras.ops.relu(self.first(x)))


def test_graph_of_a_subclassed_model_has_its_layers() -> None:
    model, x = Net(), np.ones((3, 4), np.float32)
    functional = with_graph(model, keras.Input((4,)))
    assert functional.layers[1] is model.first
    assert functional.layers[-1] is model.last
    np.testing.assert_array_equal(functional(x), model(x))
    assert with_graph(functional, None) is functional


class Flat(Net):
    def call(self, x: Any) -> Any:
        batch, size = keras.ops.shape(x)
        return super().call(keras.ops.reshape(x, (batch, size)))


class Doubled(Net):
    def call(self, x: Any) -> Any:
        return tf.add(super().call(x), super().call(x))


@pytest.mark.parametrize("kind", [Flat, Doubled])
def test_subclassed_model_without_a_graph_is_one_layer(kind: type[Net]) -> None:
    model, x = kind(), np.ones((3, 4), np.float32)
    functional = with_graph(model, keras.Input((4,)))
    assert functional.layers[1:] == [model]
    np.testing.assert_array_equal(functional(x), model(x))
    quantized = qat_lib.quantize_model(functional)
    assert len(qat_lib.model_quantizers(quantized)) == 4


def test_subclassed_model_that_reads_values_is_refused() -> None:
    class Branching(Net):
        def call(self, x: Any) -> Any:
            return self.last(x) if float(x[0, 0]) > 0 else x

    with pytest.raises(UnsupportedModelError) as raised:
        with_graph(Branching(name="mine"), keras.Input((4,)))
    message = str(raised.value)
    assert message.startswith("Branching 'mine' is a subclassed model that can't be called with ")
    assert "inputs of shape (None, 4)" in message
    assert "\n" not in message


def test_keras_graph_records() -> None:
    model = nested()
    inner = model.get_layer("inner")
    assert inner in layers_of(model)
    assert inner.get_layer("dense") in layers_inside(model)
    assert model not in layers_inside(model)
    assert count_calls(model.get_layer("dense")) == 1
    assert maker_of(model.outputs[0]) is model.get_layer("dense")


class _Alive(keras.layers.Layer):
    """Adds 1, and counts the earlier outputs of such layers in memory."""

    made: ClassVar[list[weakref.ref[Any]]] = []
    counts: ClassVar[list[int]] = []

    def call(self, x: Any) -> Any:
        y = x + 1.0
        if tf.executing_eagerly() and tf.is_tensor(y):
            self.counts.append(sum(ref() is not None for ref in self.made))
            self.made.append(weakref.ref(y))
        return y


def test_run_eagerly_releases_tensors_after_their_last_reader() -> None:
    x = y = keras.Input((4,))
    for _ in range(6):
        y = _Alive()(y)
    model = keras.Model(x, y)
    _Alive.made.clear()
    _Alive.counts.clear()
    outputs = run_eagerly(model, tf.zeros((2, 4)))
    assert outputs.numpy().tolist() == [[6.0] * 4] * 2
    assert _Alive.counts == [0, 1, 1, 1, 1, 1]


def test_run_eagerly_matches_a_call() -> None:
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    shared = keras.layers.Dense(4, activation="relu")
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    dropped = keras.layers.Dropout(0.9)(shared(a), training=True)
    total = keras.layers.Add()([dropped, shared(b), a])
    model = keras.Model({"a": a, "b": b}, {"sum": total, "copy": total, "b": b, "inner": inner(b)})
    rng = np.random.default_rng(0)
    batch = {name: rng.normal(size=(5, 4)).astype("float32") for name in "ab"}
    expected = model(batch, training=False)
    found = run_eagerly(model, batch)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor)
    # Keras's own method is back, also after an error.
    with pytest.raises(ValueError, match="incompatible"):
        run_eagerly(model, {"a": batch["a"], "b": batch["b"][:, :3]})
    assert "_run_through_graph" not in vars(model)


def test_run_eagerly_calls_a_subclassed_model() -> None:
    class Own(keras.Model):
        def call(self, x: Any, training: bool | None = None) -> Any:
            return x * 2.0 if training is False else x

    assert run_eagerly(Own(), tf.ones((1, 2))).numpy().tolist() == [[2.0, 2.0]]
