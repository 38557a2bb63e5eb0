"""Rules on the weights of input channels."""

from __future__ import annotations

import pytest
from planted_faults import images, network, quantized, scale_channel

import qat_lib
from qat_lib.keras.diagnosis.causes import Evidence, find_uneven_inputs
from qat_lib.keras.diagnosis.sites import read_sites
from qat_lib.keras.diagnosis.statistics import watch_errors
from qat_lib.keras.graph.layer_graph import LayerGraph


def evidence_of(factor: float, weight: str) -> Evidence:
    """Return what is known of a weight after conv1's channel 5 was scaled for conv2."""
    model = network()
    scale_channel(model, "conv1", "conv2", 5, factor)
    changed = quantized(model)
    sites = {site.tensor: site for site in read_sites(LayerGraph(changed))}
    site = sites[weight]
    sums = watch_errors(changed, [images(2)], [site])
    quantizer = qat_lib.model_quantizers(changed)[site.quantizer]
    return Evidence(site=site, sums=sums[site.quantizer], quantizer=quantizer)


@pytest.mark.parametrize(
    ("factor", "cause", "text"),
    [
        (1000.0, "dead channel", "The weights of input channel 5 are smaller than half a step"),
        (0.01, "outlier channel", "The weights of input channel 5 reach"),
    ],
)
def test_uneven_input_channels_are_named(factor: float, cause: str, text: str) -> None:
    found = find_uneven_inputs(evidence_of(factor, "conv2/kernel"))
    assert found is not None
    assert (found.cause, found.channels) == (cause, (5,))
    assert found.message.startswith(text)
    assert [entry.name for entry in found.change] == ["conv2"]


@pytest.mark.parametrize("weight", ["conv1/kernel", "depth/kernel", "conv3/kernel"])
def test_even_input_channels_are_not(weight: str) -> None:
    assert find_uneven_inputs(evidence_of(1000.0, weight)) is None
