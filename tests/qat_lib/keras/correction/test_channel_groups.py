"""Groups of tensors with the same factors, and what keeps tensors out of them."""

from functools import partial

import keras

from qat_lib.keras.correction.channel_groups import channel_groups
from qat_lib.keras.correction.equalization import channel_part
from qat_lib.keras.graph.layer_graph import LayerGraph


def groups(outputs, inputs):
    graph = LayerGraph(keras.Model(inputs, outputs))
    found = channel_groups(graph, partial(channel_part, graph))
    return [
        (sorted({x.name for x in group.makers}), sorted({x.name for x, _ in group.readers}))
        for group in found
    ]


def conv(name, filters=4, **options):
    return keras.layers.Conv2D(filters, 1, name=name, **options)


def test_groups_of_a_chain():
    x = keras.Input((8, 8, 3))
    y = keras.layers.ReLU()(conv("a")(x))
    y = conv("c")(keras.layers.MaxPooling2D()(conv("b", activation="relu")(y)))
    assert groups(y, x) == [(["a"], ["b"]), (["b"], ["c"])]


def test_additions_tie_their_tensors():
    x = keras.Input((8, 8, 3))
    a = conv("a")(x)
    b = keras.layers.Add()([a, conv("b")(a)])
    c = b + conv("c")(b)
    assert groups(conv("d")(c), x) == [(["a", "b", "c"], ["b", "c", "d"])]


def test_other_readers_keep_a_tensor_as_it_is():
    x = keras.Input((8, 8, 3))
    y = conv("a")(x)
    assert groups([conv("b")(y), keras.layers.Activation("tanh")(y)], x) == []
    assert groups(conv("b")(y * 2.0 + 1.0), x) == []
    assert groups([y, conv("b")(y)], x) == []


def test_broadcast_additions_keep_a_tensor_as_it_is():
    x = keras.Input((8, 8, 3))
    y = keras.layers.Add()([conv("a")(x), conv("one", 1)(x)])
    assert groups(conv("b")(y), x) == []


def test_shared_layers_keep_their_tensors_as_they_are():
    x = keras.Input((8, 8, 4))
    shared = conv("shared")
    assert groups(conv("b")(shared(shared(x))), x) == []


def test_other_activations_end_a_group():
    x = keras.Input((8, 8, 3))
    y = conv("b", activation="tanh")(conv("a")(x))
    assert groups(conv("c")(y), x) == [(["a"], ["b"])]


def test_grouped_convolutions_read_no_factors():
    x = keras.Input((8, 8, 3))
    y = conv("b", groups=2)(conv("a")(x))
    assert groups(conv("c")(y), x) == [(["b"], ["c"])]


def test_normalizations_make_channels():
    x = keras.Input((8, 8, 3))
    y = keras.layers.BatchNormalization(name="bn")(conv("a")(x))
    assert groups(conv("b")(y), x) == [(["bn"], ["b"])]
    plain = keras.layers.BatchNormalization(scale=False)(conv("c")(x))
    assert groups(conv("d")(plain), x) == []
