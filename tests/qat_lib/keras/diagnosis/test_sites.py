"""Where quantizers are, in the names of the float model."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers
from planted_faults import network, quantized

import qat_lib
from qat_lib.keras.diagnosis.sites import read_sites
from qat_lib.keras.graph.layer_graph import LayerGraph


def test_read_sites_names_makers_and_readers() -> None:
    sites = {site.quantizer: site for site in read_sites(LayerGraph(quantized(network())))}
    relu = sites["relu2_quantizer"]
    assert (relu.kind, relu.tensor, relu.layer) == ("activation", "relu2:0", "conv2")
    assert (relu.readers, relu.depthwise) == (("depth",), True)
    assert sites["image_quantizer"].layer == "image"
    kernel = sites["conv1_kernel_quantizer"]
    assert (kernel.kind, kernel.tensor) == ("weight", "conv1/kernel")
    assert (kernel.layer, kernel.readers, kernel.depthwise) == ("conv1", ("conv1",), False)
    assert sites["depth_kernel_quantizer"].depthwise
    assert not sites["relu_depth_quantizer"].depthwise


def test_read_sites_has_each_planned_quantizer() -> None:
    model = network()
    plan = qat_lib.plan_quantization(model, custom_qdq_cases="auto")
    sites = read_sites(LayerGraph(quantized(model)))
    found = {(site.quantizer, site.kind, site.tensor) for site in sites}
    assert found == {(entry.name, entry.kind, entry.tensor) for entry in plan.quantizers}


def test_read_sites_follows_readers_through_pools_and_shared_tensors() -> None:
    x = keras.Input((8, 8, 4), name="x")
    y = layers.MaxPooling2D(name="pool")(layers.ReLU(name="relu")(x))
    a = layers.Conv2D(4, 1, name="a")(y)
    b = layers.Conv2D(4, 1, name="b")(y)
    model = keras.Model(x, layers.Add(name="add")([a, b]))
    sites = {site.tensor: site for site in read_sites(LayerGraph(qat_lib.quantize_model(model)))}
    (shared,) = [site for site in sites.values() if site.kind == "activation"]
    assert shared.readers == ("a", "b")
    assert shared.layer == "x"


def test_read_sites_joins_the_tensors_of_one_quantizer() -> None:
    x = keras.Input((8, 8, 4), name="x")
    y = layers.Conv2D(4, 1, name="a")(x)
    z = layers.Concatenate(name="concat")([x, y])
    model = keras.Model(x, layers.Conv2D(2, 1, name="last")(z))
    spec = qat_lib.QuantizationSpec().add("concat")
    sites = read_sites(LayerGraph(qat_lib.quantize_model(model, quantization_spec=spec)))
    assert len({site.quantizer for site in sites}) == len(sites)
    tied = next(site for site in sites if "concat" in site.readers)
    assert set(tied.readers) >= {"a", "concat"}


def test_read_sites_names_layers_inside_of_layers() -> None:
    x = keras.Input((5, 4), name="x")
    y = layers.TimeDistributed(layers.Dense(3, name="inner"), name="steps")(x)
    model = qat_lib.quantize_model(keras.Model(x, y))
    qat_lib.calibrate(model, np.ones((2, 5, 4), np.float32))
    weights = [site for site in read_sites(LayerGraph(model)) if site.kind == "weight"]
    assert [site.tensor for site in weights] == ["steps/layer/kernel"]
    assert weights[0].readers == ("steps/layer",)
