"""Follow one tensor from its plan entry to the engine."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qat_lib.analysis.tensor_trace import NodeTrace, QuantizerTrace, TensorTrace
from qat_lib.core.plan import PlanLike, QuantizationPlan, QuantizerEntry, SkippedLayer, as_plan
from qat_lib.engines.values import EngineLayer
from qat_lib.errors import ConfigError
from qat_lib.files.text_files import read_json
from qat_lib.graph.roles import PAIR
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.onnx_view.pairs import DEQUANTIZE, quantized_type

if TYPE_CHECKING:
    from qat_lib.analysis.findings import Finding
    from qat_lib.analysis.report import FusionReport


def trace_tensor(
    name: str,
    onnx: str | os.PathLike[str],
    plan: PlanLike | None = None,
    *,
    analysis: FusionReport | None = None,
    engine_layers: Iterable[EngineLayer] | str | os.PathLike[str] = (),
) -> TensorTrace:
    """Trace one tensor from the plan to the engine.

    Args:
        name: a Keras layer (its output and weights), a quantizer, a tensor of the plan
            (``"relu:0"``, ``"conv1/kernel"``), or a node or tensor of the ONNX file.
        onnx: the exported file; for files of other producers, Keras layers are guessed from the
            names of nodes.
        plan: the quantization plan, its dict form, or the path of its JSON. Default None: without
            plan entries.
        analysis: report of ``qat_lib.analyze_onnx`` on the file. Default None: without
            predictions and findings.
        engine_layers: layers of an engine built from the file, or the path of its ``.layers.json``.
            Default: none.

    Raises:
        ConfigError: the name is unknown, or the engine's layers can't be read.
        ExportError: the ONNX file can't be read.
        PlanError: ``plan`` is not a quantization plan.

    Examples:
        >>> trace = trace_tensor("conv", "model.onnx")
        >>> [quantizer.name for quantizer in trace.quantizers]
        ['conv_kernel_quantizer', 'conv_quantizer']
    """
    sources = _Sources(
        graph=OnnxGraph.load(Path(onnx)),
        plan=None if plan is None else as_plan(plan),
        analysis=analysis,
        engine_layers=_read_engine_layers(engine_layers),
    )
    return _trace(sources, name)


def _read_engine_layers(
    layers: Iterable[EngineLayer] | str | os.PathLike[str],
) -> tuple[EngineLayer, ...]:
    if not isinstance(layers, str | os.PathLike):
        return tuple(layers)
    path = Path(layers)
    content = read_json(path, what="the layer file of an engine", error=ConfigError, unique=False)
    try:
        return tuple(EngineLayer.from_dict(layer) for layer in content["layers"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"Expected the layers of an engine that qatline built in {path}. Received something "
            f"else: {type(error).__name__}: {error}. Give the .layers.json next to the engine."
        ) from error


@dataclass(frozen=True, kw_only=True)
class _Sources:
    """Sources of a trace."""

    graph: OnnxGraph
    plan: QuantizationPlan | None
    analysis: FusionReport | None
    engine_layers: Sequence[EngineLayer]

    @cached_property
    def entries(self) -> Sequence[QuantizerEntry]:
        return () if self.plan is None else self.plan.quantizers

    @cached_property
    def skipped(self) -> Sequence[SkippedLayer]:
        return () if self.plan is None else self.plan.skipped

    @cached_property
    def pairs(self) -> Sequence[Node]:
        """The Q and DQ nodes."""
        return [node for node in self.graph.nodes if node.op in PAIR]

    @cached_property
    def predicted(self) -> Mapping[str, str]:
        """Node -> predicted precision."""
        if self.analysis is None:
            return {}
        found: dict[str, str] = {layer.name: layer.precision for layer in self.analysis.layers}
        found.update((add.name, add.precision) for add in self.analysis.adds)
        found.update((pool.name, pool.precision) for pool in self.analysis.pools)
        return found

    @cached_property
    def built(self) -> Mapping[str, str]:
        """Node -> precision of its engine layer."""
        return {name: layer.precision for layer in self.engine_layers for name in layer.nodes}


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """Keras layers and quantizers of a requested name.

    The quantizers belong to outputs and weights. ``tensor`` restricts them to one tensor of the
    plan.
    """

    layers: tuple[str, ...]
    quantizers: tuple[str, ...]
    tensor: str | None = None


def _find(sources: _Sources, name: str) -> _Subject:
    """Return the Keras layers and quantizers of a name.

    Raises:
        ConfigError: the name is unknown.
    """
    if name in _quantizers(sources):
        layers = sources.graph.identities.layers_of(name)
        planned = (entry.layer for entry in sources.entries if entry.name == name)
        return _Subject(layers=layers or tuple(dict.fromkeys(planned)), quantizers=(name,))
    for entry in sources.entries:
        if entry.tensor == name:
            return _Subject(layers=(entry.layer,), quantizers=(entry.name,), tensor=name)
    if name in _layers(sources):
        return _of_layer(sources, name)
    graph = sources.graph
    node = graph.node_by_name.get(name) or graph.producer(name)
    node = node or next(iter(graph.consumers(name)), None)  # a weight, a scale
    if node is None:
        raise _unknown(sources, name)
    if node.quantizer:
        return _Subject(layers=(node.keras_layer,), quantizers=(node.quantizer,))
    return _of_layer(sources, node.keras_layer)


def _of_layer(sources: _Sources, layer: str) -> _Subject:
    names = [node.quantizer for node in sources.pairs if node.keras_layer == layer]
    names += [entry.name for entry in sources.entries if entry.layer == layer]
    return _Subject(layers=(layer,), quantizers=tuple(dict.fromkeys(names)))


def _quantizers(sources: _Sources) -> set[str]:
    planned = {entry.name for entry in sources.entries}
    return planned.union(node.quantizer for node in sources.pairs)


def _layers(sources: _Sources) -> set[str]:
    known = {*sources.graph.inputs}
    known.update(node.keras_layer for node in sources.graph.nodes)
    known.update(entry.layer for entry in sources.entries)
    known.update(skipped.layer for skipped in sources.skipped)
    return known


def _unknown(sources: _Sources, name: str) -> ConfigError:
    known = [*_layers(sources), *_quantizers(sources), *sources.graph.node_by_name]
    near = difflib.get_close_matches(name, sorted(set(known)), n=3)
    hint = (
        f"Did you mean {' or '.join(map(repr, near))}?" if near else "List them with print(plan)."
    )
    return ConfigError(
        "Expected the name of a Keras layer, a quantizer, a tensor of the plan, or a node or "
        f"tensor of the ONNX file. Received: {name!r}. {hint}"
    )


def _trace(sources: _Sources, name: str) -> TensorTrace:
    subject = _find(sources, name)
    nodes = []
    for node in sources.graph.nodes:
        if node.keras_layer in subject.layers and node.op not in PAIR:
            nodes.append(_node(sources, node))
    quantizers = [_quantizer(sources, each, subject) for each in subject.quantizers]
    names = {node.name for node in nodes}
    for quantizer in quantizers:
        names.update(quantizer.nodes, (reader.name for reader in quantizer.readers))
    return TensorTrace(
        name=name,
        keras_layers=subject.layers,
        quantizers=tuple(quantizers),
        nodes=tuple(nodes),
        skipped=tuple(s for s in sources.skipped if s.layer in subject.layers),
        engine_layers=tuple(x for x in sources.engine_layers if not names.isdisjoint(x.nodes)),
        findings=_findings(sources, subject),
    )


def _quantizer(sources: _Sources, name: str, subject: _Subject) -> QuantizerTrace:
    entries = [entry for entry in sources.entries if entry.name == name]
    if subject.tensor is not None:
        entries = [entry for entry in entries if entry.tensor == subject.tensor]
    pairs = [node for node in sources.pairs if node.quantizer == name]
    # A quantizer may be shared by tied tensors: keep the entries of the requested layers only.
    entries = [entry for entry in entries if entry.layer in subject.layers] or entries
    pairs = [node for node in pairs if node.keras_layer in subject.layers] or pairs
    scale, amax = _scale(sources.graph, pairs[0]) if pairs else ((), ())
    return QuantizerTrace(
        name=name,
        entries=tuple(entries),
        nodes=tuple(node.name for node in pairs),
        scale=scale,
        amax=amax,
        readers=tuple(_readers(sources, pairs)),
    )


def _scale(graph: OnnxGraph, node: Node) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the scales of a Q or DQ node and the resulting ranges."""
    scale = graph.value(node.input(1))
    if scale is None:
        return (), ()
    # Signed ranges are symmetric, so -128 does not count.
    greatest = 255 if quantized_type(graph, node) == "uint8" else 127
    values = np.asarray(scale, np.float64).ravel()
    return tuple(values.tolist()), tuple((values * greatest).tolist())


def _readers(sources: _Sources, pairs: Sequence[Node]) -> Iterator[NodeTrace]:
    dequantized = [node.outputs[0] for node in pairs if node.op == DEQUANTIZE]
    readers: dict[str, Node] = {}
    for tensor in dequantized:
        readers.update((node.name, node) for node in sources.graph.consumers(tensor))
    for node in readers.values():
        yield _node(sources, node)


def _node(sources: _Sources, node: Node) -> NodeTrace:
    return NodeTrace(
        name=node.name,
        op=node.op,
        keras_layer=node.keras_layer,
        predicted=sources.predicted.get(node.name, ""),
        built=sources.built.get(node.name, ""),
    )


def _findings(sources: _Sources, subject: _Subject) -> tuple[Finding, ...]:
    if sources.analysis is None:
        return ()
    found = []
    for finding in sources.analysis.findings:
        if finding.keras_layer in subject.layers or finding.quantizer in subject.quantizers:
            found.append(finding)
    return tuple(found)
