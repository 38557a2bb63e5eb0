"""Read the engine inspector's JSON: layers with their ONNX nodes and precision.

``trtexec --exportLayerInfo`` writes the same format. The precision comes from the types of tensors
and weights. ONNX nodes come from the "Metadata" of newer versions, otherwise from the layer's name
with nodes joined by " + ".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from qat_lib.engines.values import EngineLayer

_ONNX_LAYER = re.compile(r"\[ONNX Layer: (.+?)\]")
_TYPES: tuple[tuple[str, str], ...] = (
    (r"\bInt8\b", "int8"),
    (r"\bFP8\b|E4M3", "fp8"),
    (r"\bBF16\b|BFloat16", "bf16"),
    (r"\bFP16\b|\bHalf\b", "fp16"),
    (r"\bFP32\b|\bFloat\b", "fp32"),
    (r"\bInt32\b", "int32"),
    (r"\bInt64\b", "int64"),
    (r"\bBool\b", "bool"),
)
_NOT_WEIGHTED = frozenset({"Reformat", "NoOp", "Constant", "Shuffle", "Slice"})


def read_inspector(
    description: Mapping[str, Any],
    *,
    nodes: Mapping[str, str],
    weighted: Collection[str],
    times: Mapping[str, float] | None = None,
) -> list[EngineLayer]:
    """Return the layers of an inspector's description.

    Args:
        description: ``{"Layers": [...], ...}``; layers are plain names in engines without details.
        nodes: ONNX node by each of its possible names.
        weighted: ONNX nodes with constant weights.
        times: mean milliseconds by layer name.
    """
    layers = []
    for entry in description.get("Layers", []):
        item: Mapping[str, Any] = {"Name": entry} if isinstance(entry, str) else entry
        name, kind = str(item.get("Name", "")), str(item.get("LayerType", ""))
        fused = _fused(item, nodes)
        runs_weights = kind not in _NOT_WEIGHTED and (
            _weights(item) is not None or not fused.isdisjoint(weighted)
        )
        layers.append(
            EngineLayer(
                name=name,
                kind=kind,
                nodes=tuple(fused),
                precision=_precision(item, weighted=runs_weights),
                weighted=runs_weights,
                output_precision=_tensors(item, "Outputs"),
                time_ms=(times or {}).get(name),
                kernel=str(item.get("TacticName", item.get("TacticValue", ""))),
            )
        )
    return layers


def tensor_type(tensor: Mapping[str, Any]) -> str:
    """Return the data type of a layer's input or output, such as ``int8``; empty if unknown.

    Up to 10.x, the entry "Format/Datatype" contains layout and type: "Row major Int8 format". Since
    11.0, the entries are "Format" and "Datatype", also written "DataType".
    """
    entries = {key.lower(): str(value) for key, value in tensor.items()}
    return _type(entries.get("format/datatype", entries.get("datatype", "")))


def is_detailed(description: Mapping[str, Any]) -> bool:
    """Return whether the description contains more than names."""
    return any(not isinstance(layer, str) for layer in description.get("Layers", []))


class _Ordered(dict[str, None]):
    """Names in insertion order, with the set operation needed here."""

    def isdisjoint(self, others: Collection[str]) -> bool:
        return self.keys().isdisjoint(others)


def _fused(item: Mapping[str, Any], nodes: Mapping[str, str]) -> _Ordered:
    shown = _ONNX_LAYER.findall(str(item.get("Metadata", "")))
    if not shown:
        shown = list(map(str.strip, re.split(r" \+ |\|\|", str(item.get("Name", "")))))
    known = set(nodes.values())
    return _Ordered.fromkeys(
        nodes.get(name, name) for name in shown if name in nodes or name in known
    )  # type: ignore[return-value]


def _weights(item: Mapping[str, Any]) -> str | None:
    """Return the type of a layer's weights; layers such as ConvActPool prefix the key."""
    for key, value in item.items():
        if key.endswith("Weights") and isinstance(value, Mapping) and value.get("Count"):
            return _type(str(value.get("Type", "")))
    return None


def _precision(item: Mapping[str, Any], *, weighted: bool) -> str:
    """Return the compute type of a layer, from its weights and input or else its output."""
    read, written = _tensors(item, "Inputs"), _tensors(item, "Outputs")
    if not weighted:
        return written or read or "unknown"
    weights = _weights(item)
    # INT8 weights may be dequantized for a float kernel: the input determines the precision.
    if weights == "int8":
        return read or "unknown"
    return weights or read or "unknown"


def _tensors(item: Mapping[str, Any], side: str) -> str:
    tensors: Sequence[Mapping[str, Any]] = item.get(side) or []
    # The first input is the data; further inputs may be a residual or a bias.
    return tensor_type(tensors[0]) if tensors else ""


def _type(text: str) -> str:
    return next((name for pattern, name in _TYPES if re.search(pattern, text)), "")
