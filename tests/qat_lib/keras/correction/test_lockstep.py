"""run_lockstep: both forms of a model, call by call."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import qat_lib
from qat_lib.errors import CalibrationError
from qat_lib.keras.correction.lockstep import (
    BothForms,
    read_samples,
    run_lockstep,
)
from qat_lib.keras.graph.layer_graph import LayerGraph, bytes_per_sample, fitting_batch


@pytest.fixture
def network():
    x = keras.Input((8, 8, 3), name="image")
    y = keras.layers.Conv2D(4, 3, padding="same", activation="relu", name="conv1")(x)
    z = keras.layers.Conv2D(4, 3, padding="same", name="conv2")(y)
    y = keras.layers.Add(name="add")([y, z])
    return keras.Model(x, [keras.layers.Flatten(name="flat")(y), y], name="net")


@pytest.fixture
def images():
    return np.random.default_rng(0).normal(size=(6, 8, 8, 3)).astype("float32")


def calibrated(model, images):
    quantized = qat_lib.quantize_model(model, custom_qdq_cases="auto")
    qat_lib.calibrate(quantized, images)
    return quantized


def outputs_of(quantized, images, visit=None):
    """Return each model output's pair, by its call's name."""
    graph = LayerGraph(quantized)
    seen: dict[str, BothForms] = {}

    def watch(call, pairs):
        changed = visit(call, pairs) if visit is not None else None
        for tensor, pair in zip(call.outputs, changed or pairs, strict=True):
            seen[tensor] = pair
        return changed

    batches = [tf.constant(images[:4]), tf.constant(images[4:])]
    run_lockstep(graph, batches, watch)
    return [seen[tensor] for tensor in graph.outputs]


def test_run_lockstep_matches_both_models(network, images):
    quantized = calibrated(network, images)
    expected_float = network.predict(images, verbose=0)
    expected_quantized = quantized.predict(images, verbose=0)
    for pair, in_float, integers in zip(
        outputs_of(quantized, images), expected_float, expected_quantized, strict=True
    ):
        np.testing.assert_allclose(np.concatenate(pair.float), in_float, atol=1e-5)
        np.testing.assert_allclose(np.concatenate(pair.quantized), integers, atol=1e-5)
        assert not np.allclose(np.concatenate(pair.quantized), in_float, atol=1e-5)


def test_run_lockstep_shows_outputs_before_the_activation(network, images):
    quantized = calibrated(network, images)
    lowest = {}

    def visit(call, pairs):
        lowest[call.layer] = min(float(tf.reduce_min(x)) for x in pairs[0].float)

    outputs_of(quantized, images, visit)
    assert lowest["quant_conv1"] < 0
    assert quantized.get_layer("quant_conv1").layer.activation is keras.activations.relu


def test_run_lockstep_restores_activation_after_failure(network, images):
    quantized = calibrated(network, images)
    with pytest.raises(ValueError, match="axis"):
        run_lockstep(LayerGraph(quantized), [tf.zeros((2, 8, 8, 5))], lambda call, pairs: None)
    assert quantized.get_layer("quant_conv1").layer.activation is keras.activations.relu


def test_run_lockstep_hands_changed_outputs_on(network, images):
    def silence(call, pairs):
        if call.layer != "quant_conv2":
            return None
        return (BothForms(float=pairs[0].float, quantized=[0 * x for x in pairs[0].quantized]),)

    quantized = calibrated(network, images)
    pair = outputs_of(quantized, images, silence)[1]
    assert float(tf.reduce_min(pair.quantized[0])) >= 0  # conv1's ReLU alone is left


def test_run_lockstep_takes_several_inputs():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    y = keras.layers.Concatenate(name="cat")([keras.layers.Dense(3, name="dense")(a), b])
    model = keras.Model([a, b], y)
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(5, n)).astype("float32") for n in (4, 3)]
    quantized = calibrated(model, data)
    graph, seen = LayerGraph(quantized), {}
    run_lockstep(graph, [[tf.constant(x) for x in data]], lambda c, p: seen.update({c.layer: p}))
    expected = quantized.predict(data, verbose=0)
    np.testing.assert_allclose(seen["cat"][0].quantized[0], expected, atol=1e-6)


def test_bytes_per_sample_counts_living_tensors():
    x = keras.Input((10,), name="x")
    y = keras.layers.Dense(20, name="wide")(x)
    model = keras.Model(x, keras.layers.Dense(5, name="narrow")(y))
    # 20 and 10 elements live while the wide layer runs, in two forms of 4 bytes.
    assert bytes_per_sample(LayerGraph(model)) == (20 + 10) * 4 * 2


def dictionary_model():
    inputs = {"b": keras.Input((4,), name="b"), "a": keras.Input((3,), name="a")}
    y = keras.layers.Dense(3, name="dense")(inputs["b"])
    return keras.Model(inputs, keras.layers.Concatenate(name="cat")([y, inputs["a"]]))


@pytest.mark.parametrize(("side", "expected"), [(64, 32), (4096, 4), (16384, 1)])
def test_fitting_batch_takes_a_gibibyte(side, expected):
    x = keras.Input((side, side, 1))
    graph = LayerGraph(keras.Model(x, keras.layers.ReLU()(x)))
    assert fitting_batch(graph, 32) == expected


def test_calibrate_takes_smaller_batches_of_large_samples(network, images, monkeypatch):
    quantized = qat_lib.quantize_model(network, custom_qdq_cases="auto")
    limit = 2 * bytes_per_sample(LayerGraph(quantized))
    monkeypatch.setattr("qat_lib.keras.graph.layer_graph.MEMORY", limit)
    assert qat_lib.calibrate(quantized, images).batches == 3
    assert qat_lib.calibrate(quantized, images, batch_size=1).batches == 6
    assert qat_lib.calibrate(quantized, [images]).batches == 1


def test_read_samples_takes_inputs_by_name():
    model, rng = dictionary_model(), np.random.default_rng(0)
    data = {"a": rng.normal(size=(5, 3)), "b": rng.normal(size=(5, 4)), "more": np.zeros(5)}
    graph, seen = LayerGraph(model), {}
    batches = read_samples(graph, data, samples=5, batch_size=2)
    run_lockstep(graph, batches, lambda c, p: seen.update({c.layer: p}), form="float")
    found = np.concatenate(seen["cat"][0].float)
    del data["more"]
    np.testing.assert_allclose(found, model.predict(data, verbose=0), atol=1e-6)


def test_read_samples_names_a_missing_input():
    with pytest.raises(CalibrationError, match="lacks 'b'"):
        read_samples(LayerGraph(dictionary_model()), {"a": np.zeros((5, 3))}, 5, 2)


def test_run_lockstep_casts_inputs_as_the_model_does(network):
    images = np.random.default_rng(0).integers(0, 255, size=(4, 8, 8, 3)).astype("uint8")
    graph, seen = LayerGraph(network), {}
    run_lockstep(graph, [tf.constant(images)], lambda c, p: seen.update({c.layer: p}))
    np.testing.assert_allclose(
        seen["flat"][0].float[0], network.predict(images, verbose=0)[0], rtol=1e-4, atol=1e-3
    )
