"""Record of a lowered graph for ``qat_lib.export.metadata``."""

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
from qat_lib.graph.roles import PAIR
from qat_lib.onnx_view.identity import Identities
from qat_lib.onnx_view.metadata import PREFIX


def record_quantizers(
    model: ir.Model, ranges: Mapping[str, LearnedRange], disabled: Iterable[str], *, half: bool
) -> Recorded:
    """Return the learned scales of every quantizer, from the ranges of the model."""
    activations: dict[str, float] = {}
    weights: dict[str, RecordedWeight] = {}
    readers: dict[str, tuple[str, ...]] = {}
    unsigned: list[str] = []
    for node in model.graph:
        if not is_op(node, "DequantizeLinear") or QUANTIZER not in node.meta:
            continue
        name, quantizer = str(node.name), node.meta[QUANTIZER]
        value = node.outputs[0]
        found = [f"{use.node.name}:{use.idx}" for use in value.uses()]
        if value.is_graph_output():
            found.append(f"{value.name}:")
        readers[name] = tuple(sorted(found))
        if _is_unsigned(node):
            unsigned.append(name)
        if ORIGINAL in node.meta:
            weights[name] = _recorded_weight(node)
        else:
            # From the ranges instead of the graph: the record must not repeat an error of a pass.
            activations[quantizer] = float(ranges[quantizer].scale.reshape(()))
    return Recorded(
        activations=activations,
        weights=weights,
        disabled=tuple(disabled),
        half=half,
        readers=readers,
        unsigned=tuple(unsigned),
    )


def _recorded_weight(dequantize: ir.Node) -> RecordedWeight:
    factor = dequantize.meta.get(FACTOR)
    axis = attribute(dequantize, "axis", 1)
    return RecordedWeight(
        quantizer=dequantize.meta[QUANTIZER],
        scale=dequantize.meta[LEARNED],
        factor=factor,
        digest=integer_digest(dequantize.meta[ORIGINAL], factor, axis),
        axis=axis,
    )


def _is_unsigned(dequantize: ir.Node) -> bool:
    zero_point = constant(operand(dequantize, 2))
    return zero_point is not None and zero_point.dtype == np.uint8


def node_identities(model: ir.Model) -> dict[str, str]:
    """Return the Keras layers and quantizers of the nodes as metadata."""
    layers: dict[str, str] = {}
    quantizers: dict[str, str] = {}
    for node in model.graph:
        name = str(node.name)
        layers[name] = origin(node)
        if is_op(node, *PAIR) and QUANTIZER in node.meta:
            quantizers[name] = node.meta[QUANTIZER]
    return Identities(layers=layers, quantizers=quantizers).to_metadata()


def keras_tensors(model: ir.Model) -> str:
    """Return the output tensors of the Keras layers as JSON, up to the axis order."""
    tensors: dict[str, str | None] = {}
    for node in model.graph:
        for value in node.outputs:
            if TENSOR in value.meta:
                tensors[value.meta[TENSOR]] = value.name
    return json.dumps(tensors)


def write_metadata(model: ir.Model, entries: Mapping[str, str]) -> None:
    """Add entries to the model's metadata under the ``qatline.`` prefix."""
    for key, value in entries.items():
        model.metadata_props[PREFIX + key] = value
