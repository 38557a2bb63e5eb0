"""Keras's graph records: read in one module, with each call's place.

The graph made of them knows where each call stands.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import qat_lib
from qat_lib.errors import UnsupportedModelError
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.keras.structure import count_calls, layers_inside, layers_of, maker_of, with_graph

PACKAGES = Path(qat_lib.__file__).parent.parent
PRIVATE = {
    *("_nodes_by_depth", "_functional", "_flatten_layers", "_inbound_nodes", "_outbound_nodes"),
    *("_operations", "_keras_history", "_inputs_struct", "_outputs_struct"),
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
