"""A model in stages: the same outputs, cut where little is alive."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from planted_faults import images, network, quantized

import qat_lib
from qat_lib.keras.diagnosis import stages
from qat_lib.keras.diagnosis.stages import StagedModel, cut_stages, quantizers_of
from qat_lib.keras.graph.layer_graph import LayerGraph


def test_staged_model_gives_the_outputs_of_the_model_from_any_stage() -> None:
    model = quantized(network())
    staged = StagedModel(LayerGraph(model), 16)
    assert len(staged) > 3
    whole = [[tf.constant(images())], *staged.run(0, [tf.constant(images())])]
    np.testing.assert_allclose(whole[-1][0], model(images()), rtol=1e-5, atol=1e-6)
    for first, tensors in enumerate(whole[:-1]):
        np.testing.assert_array_equal(staged.run(first, tensors)[-1][0], whole[-1][0])


def test_first_stage_is_that_of_the_earliest_quantizer() -> None:
    model = quantized(network())
    staged = StagedModel(LayerGraph(model), 16)
    names = list(qat_lib.model_quantizers(model))
    assert staged.first_stage(names) == 0
    assert staged.first_stage([]) == len(staged)
    late = staged.first_stage(["logits_kernel_quantizer"])
    assert late == len(staged) - 1
    assert staged.first_stage(["logits_kernel_quantizer", "conv2_kernel_quantizer"]) < late


def test_every_quantizer_is_in_one_stage() -> None:
    model = quantized(network())
    found: list[str] = []
    for stage in cut_stages(LayerGraph(model), 16):
        for call in stage.calls:
            found.extend(quantizers_of(call))
    assert sorted(found) == sorted(qat_lib.model_quantizers(model))


def test_stages_hand_on_what_later_ones_read() -> None:
    x = inputs = keras.Input((8, 8, 4), name="image")
    for number in range(3):
        x = layers.Conv2D(4, 1, name=f"conv{number}")(x)
    y = layers.Add(name="add")([layers.Conv2D(4, 1, name="last")(x), inputs])
    model = keras.Model(inputs, [y, x])
    graph = LayerGraph(qat_lib.quantize_model(model, custom_qdq_cases="auto"))
    found = cut_stages(graph, 2)
    assert len(found) > 1
    assert all(one.gives == two.reads for one, two in pairwise(found))
    assert found[-1].gives == graph.outputs
    staged = StagedModel(graph, 2)
    data = np.ones((2, 8, 8, 4), np.float32)
    outputs = staged.run(0, [tf.constant(data)])[-1]
    for output, expected in zip(outputs, graph.model(data), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("budget", "cuts"), [(0, 0), (2**28, 1)])
def test_cuts_stay_within_the_memory(
    monkeypatch: pytest.MonkeyPatch, budget: int, cuts: int
) -> None:
    monkeypatch.setattr(stages, "MEMORY", budget)
    found = cut_stages(LayerGraph(quantized(network())), 16)
    assert min(len(found) - 1, 1) == cuts


def test_a_model_with_masks_is_one_stage() -> None:
    inputs = keras.Input((6,), name="tokens", dtype="int32")
    x: Any = layers.Embedding(10, 4, mask_zero=True, name="embedding")(inputs)
    x = layers.Dense(4, name="dense")(x)
    model = keras.Model(inputs, layers.Dense(2, name="logits")(layers.LSTM(3, name="lstm")(x)))
    tokens = np.array([[1, 2, 0, 0, 0, 0], [3, 4, 5, 6, 7, 8]], np.int32)
    changed = qat_lib.quantize_model(model, custom_qdq_cases="auto")
    graph = LayerGraph(changed)
    assert len(cut_stages(graph, 2)) == 1
    outputs = StagedModel(graph, 2).run(0, [tf.constant(tokens)])[-1]
    np.testing.assert_allclose(outputs[0], changed(tokens), rtol=1e-5, atol=1e-6)


def test_dropout_is_off() -> None:
    inputs = keras.Input((4,), name="x")
    dropped = layers.Dropout(0.9, name="dropout")(inputs)
    model = keras.Model(inputs, layers.Dense(2, name="logits")(dropped))
    changed = qat_lib.quantize_model(model)
    data = np.ones((8, 4), np.float32)
    outputs = StagedModel(LayerGraph(changed), 8).run(0, [tf.constant(data)])[-1]
    np.testing.assert_allclose(outputs[0], changed(data, training=False), rtol=1e-6)
