"""Costs of layers in the step quantize_model."""

from __future__ import annotations

import numpy as np
from planted_faults import images, network, quantized, scale_channel

from qatline.components.steps.quantize_model import layer_costs


def test_layer_costs_name_the_noisiest_layers_and_causes() -> None:
    model = network()
    scale_channel(model, "conv1", "conv2", 3, 100.0)
    batches = [(images(), np.zeros(16))]
    found = layer_costs(quantized(model), batches, 2)
    assert (found.measure, found.samples, len(found.layers)) == ("kl", 16, 2)
    first = found.layers[0]
    assert (first.layer, first.cause) == ("conv2", "outlier channel of conv1")
    assert first.inputs is not None
    assert found.total is not None
    assert first.inputs > 0.1 * found.total
