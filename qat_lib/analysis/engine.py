"""Predict an engine: kernels, their inputs and outputs, conversions between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from qat_lib.analysis.chains import Chain, extend_over_pool, grow_chains
from qat_lib.analysis.conversions import find_conversions
from qat_lib.analysis.flow import Flow
from qat_lib.analysis.kernels import Kernel, compute_kernels
from qat_lib.analysis.propagation import propagate
from qat_lib.analysis.reads import Scale
from qat_lib.analysis.residual import PlacedAdd, place_adds
from qat_lib.analysis.weighted import WeightedOp, find_weighted
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.support.mappings import map_values


@dataclass(frozen=True, kw_only=True)
class PredictedEngine:
    """All predictions about a graph, as input of the rules.

    Attributes:
        flow: the propagated flow.
        weighted, chains: weighted operators and their kernels, by node index.
        adds: Adds of two activations.
        kernels: compute kernels in topological order, then conversions.
        written: scales of the values written as INT8.
        kernel_of: compute kernel by node index.
    """

    flow: Flow
    weighted: Mapping[int, WeightedOp]
    chains: Mapping[int, Chain]
    adds: tuple[PlacedAdd, ...]
    kernels: tuple[Kernel, ...]
    written: Mapping[str, Scale]
    kernel_of: Mapping[int, Kernel]

    @property
    def graph(self) -> OnnxGraph:
        """The ONNX graph."""
        return self.flow.graph

    def runs_int8(self, node: Node) -> bool:
        """Return whether the kernel of ``node`` computes in INT8."""
        kernel = self.kernel_of.get(node.index)
        return kernel is not None and kernel.reads == "int8"


def predict_engine(graph: OnnxGraph, *, allow_uint8: bool = False) -> PredictedEngine:
    """Predict TensorRT's engine of ``graph``; see ``qat_lib.analysis.analyze.analyze_onnx``."""
    flow = propagate(Flow.of(graph, allow_uint8=allow_uint8))
    weighted = find_weighted(flow)
    chains, adds = place_adds(flow, grow_chains(flow, weighted))
    # After the Adds: a kernel with a residual Add takes no pool.
    chains = map_values(partial(extend_over_pool, flow), chains)
    kernels, written = compute_kernels(flow, chains)
    kernel_of = {node.index: kernel for kernel in kernels for node in kernel.nodes}
    dequantized = set()
    for add in adds:
        # F3: the kernel writes floating point, so it also needs the residual in floating point.
        if add.rule == "F3" and add.chain is not None:
            dequantized.add(id(add.chain.residual))
    return PredictedEngine(
        flow=flow,
        weighted=weighted,
        chains=chains,
        adds=tuple(adds),
        kernels=(*kernels, *find_conversions(flow, kernel_of, written, dequantized)),
        written=written,
        kernel_of=kernel_of,
    )
