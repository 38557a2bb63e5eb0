"""Which layer of an engine departs first from the ONNX graph.

The graph is built again with inner tensors as further outputs, by the same backend with the same
settings, and these are compared with ONNX Runtime's. Tensors are handed out where layers end:
behind a quantizer, or where a kernel writes in floating point.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qat_lib.engines.agreement import ComparedAnswers, OutputAgreement
from qat_lib.engines.build import build_engine
from qat_lib.engines.load import load_engine
from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.onnx_graph import read_summary
from qat_lib.engines.onnxruntime import Reference
from qat_lib.engines.spec import BuildSpec
from qat_lib.engines.values import Array
from qat_lib.graph.roles import onnx_operators

if TYPE_CHECKING:
    from qat_lib.onnx_view.graph import Node, OnnxGraph

Requests = Sequence[Mapping[str, Array]]
Progress = Callable[[str, int, int], None]

_EPILOGUE = onnx_operators("activation") | {"Add", "BatchNormalization", "Clip"}
"""Operators that a kernel may apply before it writes."""
_SILENT = onnx_operators("layout") | {"QuantizeLinear", "Cast", "Identity", "Constant"}


@dataclass(frozen=True, kw_only=True)
class TensorDeparture:
    """One tensor of an engine against the reference's.

    Attributes:
        layer: Keras layer that makes it, or the node's name in files of other producers.
        tensor: name of the tensor in the ONNX file.
        difference: difference as a share of the reference's spread (``qat_lib.engines.agreement``).
        bound: largest accepted difference.
    """

    layer: str
    tensor: str
    difference: float
    bound: float

    @property
    def departs(self) -> bool:
        """Whether the difference is larger than precision explains."""
        return not self.difference <= self.bound


def compare_layers(
    manifest: EngineManifest,
    onnx: Path,
    requests: Requests,
    on_progress: Progress | None = None,
) -> tuple[TensorDeparture, ...]:
    """Return the inner tensors of an engine with their differences, in graph order.

    With all of them as outputs the backend may fuse other layers than before. Where the engine
    answers correctly in that form, single tensors are tried, by bisection.

    Args:
        manifest: of the engine.
        onnx: what it was built from.
        requests: the requests to compare on.
        on_progress: told about the builds.

    Raises:
        EngineBuildError: the graph with more outputs can't be built or run.
    """
    from qat_lib.onnx_view.graph import OnnxGraph

    graph = OnnxGraph.load(onnx)
    tensors = layer_ends(graph)
    if not tensors:
        return ()
    probe = _Probe(manifest=manifest, onnx=onnx, requests=requests, graph=graph)
    report = on_progress or (lambda *_: None)
    report("layers", 0, 1)
    found = probe.compared(tensors)
    if any(each.departs for each in found) or not probe.answers_differ(()):
        report("layers", 1, 1)
        return found
    return _bisected(probe, tensors, report)


def first_departing(departures: Sequence[TensorDeparture]) -> TensorDeparture | None:
    """Return the first tensor that departs, if any."""
    for each in departures:
        if each.departs:
            return each
    return None


def layer_ends(graph: OnnxGraph) -> list[str]:
    """Return the tensors that the kernels of a graph write, in graph order.

    A tensor that a quantizer reads counts behind it, since an engine may never have it in floating
    point.
    """
    found: dict[str, None] = {}
    for node in graph.nodes:
        for tensor in node.outputs[:1]:
            is_end = tensor and not graph.is_constant(tensor) and tensor not in graph.output_names
            if is_end and node.op not in _SILENT and _is_written(graph, node, tensor):
                found[tensor] = None
    return list(found)


def _is_written(graph: OnnxGraph, node: Node, tensor: str) -> bool:
    """Whether a kernel ends with a tensor."""
    if node.op == "DequantizeLinear":
        return True
    readers = graph.consumers(tensor)
    if any(reader.op == "QuantizeLinear" for reader in readers) or not readers:
        return False
    return not (len(readers) == 1 and readers[0].op in _EPILOGUE)


@dataclass(frozen=True, kw_only=True)
class _Probe:
    """Builds the graph with more outputs."""

    manifest: EngineManifest
    onnx: Path
    requests: Requests
    graph: OnnxGraph

    def compared(self, tensors: Sequence[str]) -> tuple[TensorDeparture, ...]:
        """Return the differences of tensors that are handed out together."""
        compared = self._compared(tensors)
        departures = []
        for tensor in tensors:
            departures.append(
                TensorDeparture(
                    layer=self.graph.keras_layer(tensor),
                    tensor=tensor,
                    difference=compared[tensor].difference,
                    bound=compared[tensor].bound,
                )
            )
        return tuple(departures)

    def answers_differ(self, tensors: Sequence[str]) -> bool:
        """Whether an output of the model departs."""
        compared = self._compared(tensors)
        return any(not compared[name].agrees for name in self.graph.outputs)

    def _compared(self, tensors: Sequence[str]) -> dict[str, OutputAgreement]:
        with tempfile.TemporaryDirectory(prefix="qatline-layers-") as folder:
            file = Path(folder) / "probe.onnx"
            with_outputs(self.onnx, tensors, file)
            spec = BuildSpec.from_dict(self.manifest.spec)
            reference = Reference(file)
            expected = list(map(reference.run, self.requests))
            built = build_engine(file, spec, verify=False)
            with load_engine(built.path, rebuild=False) as engine:
                answers = list(map(engine.infer, self.requests))
            return ComparedAnswers(
                manifest=self.manifest,
                half=read_summary(self.onnx).half,
                run=reference.run,
                requests=self.requests,
                answers=answers,
                expected=expected,
            ).outputs


def _bisected(
    probe: _Probe, tensors: Sequence[str], report: Progress
) -> tuple[TensorDeparture, ...]:
    """Return the first tensor that departs when it alone is handed out, and those tried."""
    low, high, tried = 0, len(tensors), dict[str, TensorDeparture]()
    steps = max(1, len(tensors).bit_length())
    while low < high:
        report("layers", min(len(tried), steps), steps)
        middle = (low + high) // 2
        (found,) = probe.compared(tensors[middle : middle + 1])
        tried[found.tensor] = found
        if found.departs:
            high = middle
        else:
            low = middle + 1
    report("layers", steps, steps)
    return tuple(tried[tensor] for tensor in tensors if tensor in tried)


def with_outputs(onnx: Path, tensors: Sequence[str], target: Path) -> None:
    """Write an ONNX file with inner tensors as further outputs."""
    import onnx as library
    from onnx.shape_inference import infer_shapes

    from qat_lib.onnx_view.loading import load_onnx

    load_onnx(onnx)  # refuses what is no sound file
    model: Any = library.load(str(onnx))
    known = {value.name: value for value in infer_shapes(model).graph.value_info}
    for tensor in tensors:
        found = known.get(tensor)
        model.graph.output.append(found or library.ValueInfoProto(name=tensor))
    library.save_model(model, str(target))
