"""Find the first layer of an engine that deviates from the ONNX graph.

The same backend builds the graph again with the same settings and with inner tensors as additional
outputs, for a comparison with ONNX Runtime. Suitable tensors are the ends of layers: behind a
quantizer, or the floating-point output of a kernel.
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

# Operators in the epilogue of a kernel.
_EPILOGUE = onnx_operators("activation") | {"Add", "BatchNormalization", "Clip"}
_SILENT = onnx_operators("layout") | {"QuantizeLinear", "Cast", "Identity", "Constant"}


@dataclass(frozen=True, kw_only=True)
class TensorDeparture:
    """Difference of one tensor of an engine from the reference.

    Attributes:
        layer: its Keras layer, or its node in files of other producers.
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
        """Whether the difference exceeds the bound, or is NaN."""
        return not self.difference <= self.bound


def compare_layers(
    manifest: EngineManifest,
    onnx: Path,
    requests: Requests,
    on_progress: Progress | None = None,
) -> tuple[TensorDeparture, ...]:
    """Return the inner tensors of an engine with their differences, in graph order.

    Additional outputs may change the fusions of the backend. If the engine is correct in that form,
    single tensors are tried by bisection.

    Args:
        manifest: manifest of the engine.
        onnx: source of the engine.
        requests: requests for the comparison.
        on_progress: called for the builds.

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
    """Return the first tensor outside of its bound, if any."""
    for each in departures:
        if each.departs:
            return each
    return None


def layer_ends(graph: OnnxGraph) -> list[str]:
    """Return the outputs of the kernels of a graph, in graph order.

    A quantized tensor is listed behind its quantizer, since an engine may not compute it in
    floating point.
    """
    found: dict[str, None] = {}
    for node in graph.nodes:
        for tensor in node.outputs[:1]:
            is_end = tensor and not graph.is_constant(tensor) and tensor not in graph.output_names
            if is_end and node.op not in _SILENT and _is_written(graph, node, tensor):
                found[tensor] = None
    return list(found)


def _is_written(graph: OnnxGraph, node: Node, tensor: str) -> bool:
    """Return whether a tensor is the output of a kernel."""
    if node.op == "DequantizeLinear":
        return True
    readers = graph.consumers(tensor)
    if any(reader.op == "QuantizeLinear" for reader in readers) or not readers:
        return False
    return not (len(readers) == 1 and readers[0].op in _EPILOGUE)


@dataclass(frozen=True, kw_only=True)
class _Probe:
    """Builder of the graph with additional outputs."""

    manifest: EngineManifest
    onnx: Path
    requests: Requests
    graph: OnnxGraph

    def compared(self, tensors: Sequence[str]) -> tuple[TensorDeparture, ...]:
        """Return the differences of tensors from one common build."""
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
        """Return whether an output of the model exceeds its bound."""
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
                return ComparedAnswers(
                    manifest=self.manifest,
                    half=read_summary(self.onnx).half,
                    run=reference.run,
                    moved=reference.moved,
                    infer=engine.infer,
                    requests=self.requests,
                    answers=list(map(engine.infer, self.requests)),
                    expected=expected,
                ).outputs


def _bisected(
    probe: _Probe, tensors: Sequence[str], report: Progress
) -> tuple[TensorDeparture, ...]:
    """Return the tried tensors of a bisection, each as the only additional output."""
    low, high, tried = 0, len(tensors), dict[str, TensorDeparture]()
    steps = max(1, len(tensors).bit_length())
    # Assumes that all tensors behind the first wrong one are wrong, too.
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
    """Write an ONNX file with inner tensors as additional outputs."""
    import onnx as library
    from onnx.shape_inference import infer_shapes

    from qat_lib.onnx_view.loading import load_onnx

    load_onnx(onnx)  # rejects damaged files
    model: Any = library.load(str(onnx))
    known = {value.name: value for value in infer_shapes(model).graph.value_info}
    for tensor in tensors:
        found = known.get(tensor)
        model.graph.output.append(found or library.ValueInfoProto(name=tensor))
    library.save_model(model, str(target))
