"""Score a prediction against a built TensorRT engine.

The layer file comes from ``trtexec --exportLayerInfo``, the engine inspector, or qatline's engine
build (``.layers.json``). With detailed profiling it contains names, formats and metadata; without,
it is a list of names, and precision can't be scored. TensorRT joins the names of the ONNX nodes
in a layer with " + " and repeats them in ``Metadata``; both sources are used.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qat_lib.analysis.report import FusionReport
from qat_lib.engines.tensorrt.inspector import tensor_type
from qat_lib.errors import ConfigError
from qat_lib.files.text_files import read_json
from qat_lib.support.mappings import map_values

_METADATA = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_REFORMAT = re.compile(r"reformat|copynode|__myl_(cast|move)", re.IGNORECASE)
#: Conversion layers, with TensorRT's and OpenVINO's type names.
_CONVERSIONS = frozenset({"Reformat", "Reorder", "FakeQuantize", "Convert"})
#: Kinds of predicted conversion kernels.
_CONVERTING_KINDS = frozenset({"reformat", "requantize"})
# The look-behind starts a run of brackets once: else the time is quadratic in its length.
_BRACKETS = re.compile(r"\bPWN\(|(?<!\))\)+(?=$|,|\s)|\{ForeignNode\[|\]\}|\.\.\.")


@dataclass(frozen=True, kw_only=True)
class LayerInfo:
    """One layer of a built engine; an unknown precision is None."""

    name: str
    nodes: frozenset[str]
    reads_int8: bool | None
    writes_int8: bool | None
    is_reformat: bool


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One difference between prediction and engine."""

    node: str
    what: str
    predicted: str
    found: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Agreement of a prediction with an engine.

    Attributes:
        matched, unmatched: number of weighted nodes found in the engine, and names of the others.
        precision_score: share of matched weighted layers with the correct precision (INT8 or
            float); None without formats.
        output_score: the same for the precision of their outputs.
        add_score: share of Adds with the correct fusion; None without Adds.
        predicted_conversions, engine_conversions: stand-alone conversions predicted and found.
        predicted_layers, engine_layers: number of layers predicted and found.
        mismatches: every difference, by node.
        scored: number of predictions behind each score, by ``"precision"``, ``"output"`` and
            ``"add"``.
    """

    matched: int
    unmatched: tuple[str, ...]
    precision_score: float | None
    output_score: float | None
    add_score: float | None
    predicted_conversions: int
    engine_conversions: int
    predicted_layers: int
    engine_layers: int
    mismatches: tuple[Mismatch, ...]
    scored: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain lists and dicts."""
        return asdict(self)

    def to_json(self) -> str:
        """Return the comparison as JSON text."""
        return json.dumps(self.to_dict(), indent=1)


def compare(
    report: FusionReport, layers: str | Path | Mapping[str, Any] | Iterable[Any]
) -> Comparison:
    """Score ``report`` against an engine's layers, joined by ONNX node names.

    Args:
        report: the prediction.
        layers: path of a layer file, or its parsed JSON: ``{"Layers": [...]}``, ``{"layers":
            [...]}`` or a list of objects or plain names.

    Raises:
        ConfigError: the file can't be read or contains no layers.
    """
    engine = read_layer_info(layers)
    named = _by_node(engine, _names(report))
    score = _Score()
    for layer in report.layers:
        built = named.get(layer.name)
        if built is not None:
            # Mixed layers run in floating point.
            precision = "int8" if layer.precision == "int8" else "float"
            score.add("precision", layer.name, precision, _word(built.reads_int8))
            score.add("output", layer.name, layer.writes, _word(built.writes_int8))
    for add in report.adds:
        built = named.get(add.name)
        if built is not None:
            found = _fused_into(report, built, add.fused_into)
            score.add("add", add.name, add.fused_into or "stands alone", found)
    conversions = 0
    for kernel in report.kernels:
        conversions += kernel.kind in _CONVERTING_KINDS
    unmatched = tuple(layer.name for layer in report.layers if layer.name not in named)
    return Comparison(
        matched=len(report.layers) - len(unmatched),
        unmatched=unmatched,
        precision_score=score.share("precision"),
        output_score=score.share("output"),
        add_score=score.share("add"),
        predicted_conversions=conversions,
        engine_conversions=sum(layer.is_reformat for layer in engine),
        predicted_layers=len(report.engine),
        engine_layers=len(engine),
        mismatches=tuple(score.mismatches),
        scored=score.counts(),
    )


class _Score:
    """Comparison results by kind of prediction."""

    def __init__(self) -> None:
        self.mismatches: list[Mismatch] = []
        self._right: dict[str, list[bool]] = defaultdict(list)

    def add(self, what: str, node: str, predicted: str, found: str | None) -> None:
        """Record one prediction; ``found`` is None if the layer file has no such information."""
        if found is None:
            return
        self._right[what].append(predicted == found)
        if predicted != found:
            self.mismatches.append(Mismatch(node=node, what=what, predicted=predicted, found=found))

    def share(self, what: str) -> float | None:
        """Return the share of right predictions; None without any."""
        right = self._right.get(what)
        return sum(right) / len(right) if right else None

    def counts(self) -> dict[str, int]:
        """Return the number of predictions."""
        return map_values(len, self._right)


def read_layer_info(source: str | Path | Mapping[str, Any] | Iterable[Any]) -> list[LayerInfo]:
    """Read the layers of an engine from a file or parsed JSON; see ``compare``."""
    content: Any = source
    if isinstance(source, (str, Path)):
        what = (
            "the layers of an engine (of trtexec --exportLayerInfo, the engine inspector or "
            "qatline)"
        )
        content = read_json(source, what=what, error=ConfigError, unique=False)
    entries = (
        content.get("Layers", content.get("layers")) if isinstance(content, Mapping) else content
    )
    if (
        not isinstance(entries, list)
        or not entries
        or not all(isinstance(entry, (str, Mapping)) for entry in entries)
    ):
        raise ConfigError(
            "Expected the layers of an engine as {'Layers': [...]} with objects or names. Received "
            f"{type(content).__name__} without such a list. Write it with trtexec "
            "--exportLayerInfo."
        )
    return list(map(_layer, entries))


def _layer(entry: str | Mapping[str, Any]) -> LayerInfo:
    if isinstance(entry, str):
        return LayerInfo(
            name=entry,
            nodes=frozenset(_parts(entry)),
            reads_int8=None,
            writes_int8=None,
            is_reformat=bool(_REFORMAT.search(entry)),
        )
    if "nodes" in entry:
        return _own_layer(entry)
    name = str(entry.get("Name", ""))
    metadata = _METADATA.findall(str(entry.get("Metadata", "")))
    kind = str(entry.get("LayerType", ""))
    # TensorRT implements a separate Q as a Scale layer.
    quantizer_alone = kind == "Scale" and "QuantizeLinear" in name
    return LayerInfo(
        name=name,
        nodes=frozenset((*_parts(name), *metadata)),
        # A fused residual may arrive in floating point, so one INT8 input is enough.
        reads_int8=_is_int8(entry.get("Inputs"), every=False),
        writes_int8=_is_int8(entry.get("Outputs"), every=True),
        is_reformat=kind in _CONVERSIONS or quantizer_alone or bool(_REFORMAT.search(name)),
    )


def _own_layer(entry: Mapping[str, Any]) -> LayerInfo:
    """Read a layer in the format of qatline's engine builds."""
    name = str(entry.get("name") or "")
    precision = str(entry.get("precision") or "")
    output = str(entry.get("output_precision") or "")
    nodes = entry["nodes"]
    if not isinstance(nodes, (list, tuple)):
        raise ConfigError(
            f"Expected the nodes of layer {name!r:.100} as a list of names. Received: "
            f"{nodes!r:.100}."
        )
    return LayerInfo(
        name=name,
        nodes=frozenset(map(str, nodes)),
        reads_int8=precision == "int8" if precision else None,
        writes_int8=output == "int8" if output else None,
        is_reformat=str(entry.get("kind")) in _CONVERSIONS or bool(_REFORMAT.search(name)),
    )


def _parts(name: str) -> list[str]:
    """Split the name of an engine layer into nodes: ``PWN(PWN(a), b) + c`` into a, b and c."""
    parts = re.split(r"\s\+\s|\s\|\|\s|, ", _BRACKETS.sub(" ", name))
    return list(filter(None, map(str.strip, parts)))


def _is_int8(tensors: Any, *, every: bool) -> bool | None:
    types = []
    for tensor in tensors if isinstance(tensors, (list, tuple)) else ():
        if isinstance(tensor, Mapping):
            types.append(tensor_type(tensor))
    if not any(types):
        return None
    found = [each == "int8" for each in types]
    return all(found) if every else any(found)


def _names(report: FusionReport) -> list[str]:
    return [layer.name for layer in report.layers] + [add.name for add in report.adds]


def _by_node(engine: list[LayerInfo], nodes: Iterable[str]) -> dict[str, LayerInfo]:
    """Return the first engine layer of each ONNX node, ignoring reformats with a node's name."""
    first: dict[str, LayerInfo] = {}
    for layer in engine:
        if not layer.is_reformat:
            for node in layer.nodes:
                first.setdefault(node, layer)
    return {node: first[node] for node in nodes if node in first}


def _fused_into(report: FusionReport, built: LayerInfo, predicted: str | None) -> str:
    inside = [layer.name for layer in report.layers if layer.name in built.nodes]
    if predicted in inside or not inside:
        return predicted if predicted in inside and predicted is not None else "stands alone"
    return inside[0]


def _word(int8: bool | None) -> str | None:
    return None if int8 is None else "int8" if int8 else "float"
