"""The golden graph: what published engines of Keras's ResNet-50 hold."""

from __future__ import annotations

from collections import Counter

import pytest
from resnet50_graph import Placement, resnet50

from qat_lib.analysis import FusionReport, analyze_graph


def report(placement: Placement) -> FusionReport:
    return analyze_graph(resnet50(placement).graph())


def test_residual_placement_gives_the_published_engine() -> None:
    found = report("residual")
    convolutions = [
        layer for layer in found.layers if layer.op_type == "Conv" and layer.precision == "int8"
    ]
    fused = {add.fused_into for add in found.adds if add.precision == "int8"}
    assert len([layer for layer in convolutions if layer.name not in fused]) == 37
    assert len(fused) == 16
    assert [pool.precision for pool in found.pools] == ["int8", "int8"]
    assert [
        (layer.keras_layer, layer.precision, layer.writes)
        for layer in found.layers
        if layer.op_type == "MatMul"
    ] == [("predictions", "int8", "float")]
    assert [(kernel.kind, kernel.name) for kernel in found.kernels] == [
        ("reformat", "image_quantizer/QuantizeLinear")
    ]
    assert [finding.code for finding in found.findings] == ["H2"]
    assert all(name is not None and name.endswith("_3_conv/Conv") for name in fused)


def test_multiply_accumulates() -> None:
    layers = report("residual").layers
    assert sum(layer.macs for layer in layers) == pytest.approx(3.86e9, rel=0.01)
    assert sum(layer.macs_share for layer in layers) == pytest.approx(1.0)
    assert (
        next(layer.macs for layer in layers if layer.keras_layer == "conv1_conv")
        == 7 * 7 * 3 * 64 * 112 * 112
    )


@pytest.mark.parametrize(
    ("placement", "rules", "codes"),
    [
        ("conv-only", {"F2": 16}, {"V15": 16, "V13": 16, "H2": 1}),
        ("all-add-inputs", {"F4": 16}, {"V17": 16, "H2": 1}),
        ("residual", {"F1": 16}, {"H2": 1}),
    ],
)
def test_verdicts_on_the_three_placements(
    placement: Placement, rules: dict[str, int], codes: dict[str, int]
) -> None:
    found = report(placement)
    assert Counter(add.rule for add in found.adds) == rules
    assert Counter(finding.code for finding in found.findings) == codes
    assert found.int8_layers == 54


def test_each_placement_has_its_kernels() -> None:
    kernels = {
        name: report(name).summary()["kernels"]
        for name in ("conv-only", "all-add-inputs", "residual")
    }
    assert kernels == {
        "conv-only": {"quantize": 17},
        "all-add-inputs": {"elementwise": 16, "quantize": 1},
        "residual": {"quantize": 1},
    }
