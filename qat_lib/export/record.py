"""Read off a lowered graph what :mod:`qat_lib.export.metadata` records about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    FACTOR,
    LEARNED,
    ORIGINAL,
    QUANTIZER,
    TENSOR,
    attribute,
    constant,
    is_op,
    operand,
)
from qat_lib.export.metadata import Recorded, RecordedWeight, integer_digest
from qat_lib.export.passes.names import origin
from qat_lib.export.ranges import LearnedRange
from qat_lib.onnx_view.identity import Identities
from qat_lib.onnx_view.metadata import PREFIX
from qat_lib.roles import PAIR


def record_quantizers(
    model: ir.Model, ranges: Mapping[str, LearnedRange], disabled: Iterable[str], *, half: bool
) -> Recorded:
    """Return the learned scales of every quantizer in the graph, from the Keras model's ranges."""
    activations: dict[str, float] = {}
    weights: dict[str, RecordedWeight] = {}
    for node in model.graph:
        if not is_op(node, "DequantizeLinear") or QUANTIZER not in node.meta:
            continue
        name = node.meta[QUANTIZER]
        if ORIGINAL not in node.meta:
            activations[name] = float(ranges[name].scale.reshape(()))
            continue
        factor = node.meta.get(FACTOR)
        axis = attribute(node, "axis", 1)
        digest = integer_digest(node.meta[ORIGINAL], factor, axis)
        weights[str(node.name)] = RecordedWeight(
            quantizer=name, scale=node.meta[LEARNED], factor=factor, digest=digest, axis=axis
        )
    pairs = [
        node for node in model.graph if is_op(node, "DequantizeLinear") and QUANTIZER in node.meta
    ]
    return Recorded(
        activations=activations,
        weights=weights,
        disabled=tuple(disabled),
        half=half,
        readers={str(node.name): _readers(node.outputs[0]) for node in pairs},
        unsigned=tuple(str(node.name) for node in pairs if _is_unsigned(node)),
    )


def _is_unsigned(dequantize: ir.Node) -> bool:
    zero_point = constant(operand(dequantize, 2))
    return zero_point is not None and zero_point.dtype == np.uint8


def _readers(value: ir.Value) -> tuple[str, ...]:
    found = [f"{use.node.name}:{use.idx}" for use in value.uses()]
    return tuple(sorted([*found, f"{value.name}:"] if value.is_graph_output() else found))


def node_identities(model: ir.Model) -> dict[str, str]:
    """Return the metadata that say which Keras layer and which quantizer each node stands for."""
    layers: dict[str, str] = {}
    quantizers: dict[str, str] = {}
    for node in model.graph:
        name = str(node.name)
        layers[name] = origin(node)
        if is_op(node, *PAIR) and QUANTIZER in node.meta:
            quantizers[name] = node.meta[QUANTIZER]
    return Identities(layers=layers, quantizers=quantizers).to_metadata()


def keras_tensors(model: ir.Model) -> str:
    """Return JSON: Keras layer -> name of the tensor that holds its output (up to the order of axes)."""
    values = [value for node in model.graph for value in node.outputs]
    return json.dumps({value.meta[TENSOR]: value.name for value in values if TENSOR in value.meta})


def write_metadata(model: ir.Model, entries: Mapping[str, str]) -> None:
    """Add entries to the model's metadata under the ``qatline.`` prefix."""
    model.metadata_props.update({PREFIX + key: value for key, value in entries.items()})
