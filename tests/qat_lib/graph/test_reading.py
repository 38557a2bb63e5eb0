"""Reading a model's graph with its framework's front end."""

import keras
import pytest

import qat_lib
from qat_lib.errors import UnsupportedModelError
from qat_lib.graph.reading import is_module, read_graph


def test_read_graph_of_a_keras_model() -> None:
    x = keras.Input((2,))
    model = keras.Model(x, keras.layers.Dense(1)(x))
    assert isinstance(read_graph(model), qat_lib.LayerGraph)
    assert not is_module(model)


def test_read_graph_refuses_other_objects() -> None:
    with pytest.raises(UnsupportedModelError, match=r"Expected a keras.Model. Received: object"):
        read_graph(object())


def test_is_module_checks_the_bases_package() -> None:
    base = type("Module", (), {"__module__": "torch.nn.modules.module"})
    assert is_module(type("Network", (base,), {})())
    assert not is_module(type("Module", (), {"__module__": "torchless"})())
