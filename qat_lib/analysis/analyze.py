"""Build the FusionReport of an ONNX file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from qat_lib.analysis.drawing import draw
from qat_lib.analysis.engine import PredictedEngine, predict_engine
from qat_lib.analysis.findings import Finding
from qat_lib.analysis.kernels import Kernel, standalone
from qat_lib.analysis.operators import is_pool
from qat_lib.analysis.report import (
    AddVerdict,
    FusionReport,
    KernelVerdict,
    LayerVerdict,
    PoolVerdict,
)
from qat_lib.analysis.residual import PlacedAdd
from qat_lib.analysis.rules import engine_checks
from qat_lib.analysis.rules.parser import TensorRTMajor, check_parser_rules
from qat_lib.analysis.weighted import WeightedOp
from qat_lib.engines import get_backend
from qat_lib.errors import ConfigError
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.onnx_view.scales import require_usable_scales
from qat_lib.options import Backend


def analyze_onnx(
    path: str | Path, *, tensorrt: TensorRTMajor = 10, target: Backend | None = None
) -> FusionReport:
    """Predict the fusions and precisions of an ONNX file's engine, without a GPU.

    The rules are TensorRT's. One difference of OpenVINO and ONNX Runtime is modelled: kernels for
    unsigned integers, which TensorRT rejects. ``qat_lib.analysis.findings`` lists the rules and
    the evidence for each.

    Args:
        path: the file, of any producer, with or without Q/DQ pairs.
        tensorrt: major version to predict for. Default 10; 8 also requires weights behind Q and
            DQ.
        target: backend to predict for. Default None: the export target of the file, TensorRT for
            files of other producers.

    Raises:
        ExportError: the file can't be read, see ``qat_lib.onnx_view.loading.load_onnx``, or a
            scale of its Q/DQ nodes is zero, negative, subnormal or not finite.
        ConfigError: ``target`` is not a backend.

    Examples:
        >>> report = analyze_onnx("model.onnx")  # a quantized Conv2D and Dense
        >>> report.int8_layers, report.fused_adds
        (2, 0)
    """
    graph = OnnxGraph.load(path)
    require_usable_scales(Path(path), graph)
    return analyze_graph(graph, model=str(path), tensorrt=tensorrt, target=target)


def analyze_graph(
    graph: OnnxGraph,
    *,
    model: str = "",
    tensorrt: TensorRTMajor = 10,
    target: Backend | None = None,
) -> FusionReport:
    """Predict the fusions of a graph's engine; see ``analyze_onnx``."""
    if target is not None and target not in get_args(Backend):
        raise ConfigError(
            f"Expected target to be one of {', '.join(get_args(Backend))}. Received: {target!r}."
        )
    # A file of a newer version may record an unknown target; it counts as none.
    asked = target or graph.target
    chosen = next((name for name in get_args(Backend) if name == asked), "tensorrt")
    unsigned = get_backend(chosen).supports("unsigned")
    # The additional rule of version 8 concerns TensorRT only.
    findings = check_parser_rules(
        graph, tensorrt=10 if unsigned else tensorrt, allow_uint8=unsigned
    )
    engine = predict_engine(graph, allow_uint8=unsigned)
    # The rules of the predicted engine run after those of the graph itself, in a fixed order.
    for check in engine_checks():
        findings.extend(check(engine))
    if unsigned:  # CPUs compute these exactly, and those planned by default faster than in float
        findings = [finding for finding in findings if finding.code != "V26"]
    total = sum(op.macs for op in engine.weighted.values())
    return FusionReport(
        model=model,
        target=chosen,
        exported_for=graph.target,
        layers=tuple(_layer(engine, op, total) for op in engine.weighted.values()),
        adds=tuple(map(_add, engine.adds)),
        pools=_pools(engine),
        kernels=_kernels(engine.graph, filter(standalone, engine.kernels)),
        engine=_kernels(engine.graph, engine.kernels),
        islands=tuple(tuple(map(kernel_name, island)) for island in find_islands(engine)),
        findings=_in_graph_order(engine.graph, findings),
        drawing=draw(engine),
    )


def kernel_name(kernel: Kernel) -> str:
    """Return the names of a kernel's nodes joined by " + ", as in TensorRT."""
    return " + ".join(node.name for node in kernel.nodes) or kernel.name


def _layer(engine: PredictedEngine, op: WeightedOp, total: int) -> LayerVerdict:
    kernel = engine.kernel_of[op.node.index]
    return LayerVerdict(
        name=op.node.name,
        keras_layer=op.node.keras_layer,
        quantizer=op.weight.quantizer if op.weight is not None else "",
        op_type=op.node.op,
        precision=op.precision,
        writes=kernel.writes,
        float_type=engine.graph.dtype(op.node.outputs[0]) or "float32",
        macs=op.macs,
        macs_share=op.macs / total if total else 0.0,
        kernel=kernel_name(kernel),
    )


def _add(placed: PlacedAdd) -> AddVerdict:
    return AddVerdict(
        name=placed.node.name,
        keras_layer=placed.node.keras_layer,
        fused_into=placed.chain.op.node.name if placed.chain is not None else None,
        precision="int8" if placed.int8 else "float",
        rule=placed.rule,
    )


def _pools(engine: PredictedEngine) -> tuple[PoolVerdict, ...]:
    pools = []
    for node in engine.flow.operators:
        if is_pool(engine.graph, node):
            pools.append(_pool(engine, node))
    return tuple(pools)


def _pool(engine: PredictedEngine, node: Node) -> PoolVerdict:
    precision = "int8" if engine.runs_int8(node) else "float"
    return PoolVerdict(
        name=node.name, keras_layer=node.keras_layer, op_type=node.op, precision=precision
    )


def _kernels(graph: OnnxGraph, kernels: Iterable[Kernel]) -> tuple[KernelVerdict, ...]:
    return tuple(_kernel(graph, kernel) for kernel in kernels)


def _kernel(graph: OnnxGraph, kernel: Kernel) -> KernelVerdict:
    name = kernel_name(kernel)
    return KernelVerdict(
        kind="reformat" if kernel.transposes else kernel.kind,
        detail="transpose" if kernel.transposes else kernel.reason,
        name=name,
        keras_layer=graph.keras_layer(kernel.nodes[0].name if kernel.nodes else name),
        reads=kernel.reads,
        writes=kernel.writes,
    )


def _in_graph_order(graph: OnnxGraph, findings: list[Finding]) -> tuple[Finding, ...]:
    def place(finding: Finding) -> int:
        node = graph.node_by_name.get(finding.node)
        # Findings about tensors and the whole file come first.
        return -1 if node is None else node.index

    return tuple(sorted(findings, key=place))


def find_islands(engine: PredictedEngine) -> list[tuple[Kernel, ...]]:
    """Return connected groups of floating-point kernels with INT8 kernels on both sides."""
    compute = [kernel for kernel in engine.kernels if kernel.nodes]
    root = {id(kernel): id(kernel) for kernel in compute}

    def find(key: int) -> int:
        # Union-find with path halving.
        while root[key] != key:
            root[key] = key = root[root[key]]
        return key

    after, before = set(), set()
    for kernel in compute:
        for source in _sources(engine, kernel):
            # Float kernels with a float edge belong together; an INT8 neighbour marks a border.
            if source.writes == "float" and source.reads == "float" and kernel.reads == "float":
                root[find(id(kernel))] = find(id(source))
            elif kernel.reads == "float":
                after.add(id(kernel))
            elif source.reads == "float":
                before.add(id(source))
    groups: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in compute:
        if kernel.reads == "float":
            groups[find(id(kernel))].append(kernel)
    islands = []
    for group in groups.values():
        members = {id(kernel) for kernel in group}
        # A group at the start or end of the graph needs only one conversion and is no island.
        if members & after and members & before:
            islands.append(tuple(group))
    return islands


def _sources(engine: PredictedEngine, kernel: Kernel) -> list[Kernel]:
    found = []
    for node in kernel.nodes:
        for read in engine.flow.data_inputs(node):
            producer = engine.graph.producer(read.value)
            source = engine.kernel_of.get(producer.index) if producer is not None else None
            if source is not None and source is not kernel:
                found.append(source)
    return found
