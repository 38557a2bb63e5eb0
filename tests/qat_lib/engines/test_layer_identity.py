"""An engine layer's Keras layer and quantizers, by its ONNX nodes."""

from __future__ import annotations

from typing import Any

import pytest

from qat_lib.engines.layer_identity import identify_layers
from qat_lib.engines.values import EngineLayer
from qat_lib.onnx_view.identity import Identities

KNOWN = Identities(
    layers={"a/Q": "x", "a/DQ": "x", "k/DQ": "conv", "n1": "conv", "n2": "relu", "n3": "add"},
    quantizers={"a/Q": "x_q", "a/DQ": "x_q", "k/DQ": "k_q"},
)


def layer(*nodes: str, **options: Any) -> EngineLayer:
    return EngineLayer(
        name="l", kind="Conv", nodes=nodes, precision="int8", weighted=True, **options
    )


@pytest.mark.parametrize(
    ("nodes", "keras_layer", "quantizers"),
    [
        (("n3", "k/DQ", "n1", "n2"), "conv", ("k_q",)),
        (("a/Q", "a/DQ", "n2", "n3"), "relu", ("x_q",)),
        (("a/DQ", "k/DQ"), "x", ("x_q", "k_q")),
        (("quant_other/Conv",), "other", ()),
        ((), "", ()),
    ],
)
def test_a_layer_is_known_by_the_node_that_computes(
    nodes: tuple[str, ...], keras_layer: str, quantizers: tuple[str, ...]
) -> None:
    (found,) = identify_layers([layer(*nodes, kernel="k")], KNOWN, ["n1"])
    assert found == layer(*nodes, kernel="k", keras_layer=keras_layer, quantizers=quantizers)


def test_a_layer_round_trips_with_its_identity() -> None:
    built = layer("n1", keras_layer="conv", quantizers=("k_q",))
    assert built.to_dict()["quantizers"] == ["k_q"]
    assert EngineLayer.from_dict(built.to_dict()) == built


def test_a_layer_of_an_older_file_has_no_identity() -> None:
    values = layer("n1").to_dict()
    del values["keras_layer"], values["quantizers"]
    assert EngineLayer.from_dict(values) == layer("n1")
