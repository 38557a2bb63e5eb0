"""ChannelReLU: a bound for each channel."""

import keras
import numpy as np
import pytest

import qat_lib
from qat_lib.errors import SpecError
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.keras.quantizers import ChannelReLU


def test_channel_relu_clips_each_channel():
    y = ChannelReLU([1.0, 2.0])(np.float32([[-3, -3], [0.5, 0.5], [9, 9]]))
    np.testing.assert_array_equal(y, np.float32([[0, 0], [0.5, 0.5], [1, 2]]))


@pytest.mark.parametrize("bounds", [[], [1.0, 0.0], [1.0, -2.0], [float("nan")], [float("inf")]])
def test_channel_relu_refuses(bounds):
    with pytest.raises(SpecError, match="positive bound"):
        ChannelReLU(bounds)


def test_channel_relu_is_saved(tmp_path):
    x = keras.Input((4, 4, 2))
    model = keras.Model(x, ChannelReLU([0.1, 1e-3], name="relu")(x))
    model.save(tmp_path / "model.keras")
    loaded = qat_lib.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("relu").bounds == [0.1, 1e-3]


def test_channel_relu_is_capped_relu_to_planner():
    x = keras.Input((4, 4, 2))
    graph = LayerGraph(keras.Model(x, ChannelReLU([1.0, 2.0], name="relu")(x)))
    traits = graph.by_name["relu"].traits
    assert traits.activation == "relu6"
    assert "non-negative" in traits.roles
    assert not traits.preserves_range


def test_channel_relu_keeps_half_precision():
    assert ChannelReLU([1.0, 2.0], dtype="float16")(np.ones((1, 2), "float16")).dtype == "float16"
