"""Find floating-point islands: kernels between INT8 kernels, at the cost of two conversions."""

from __future__ import annotations

from collections import defaultdict

from qat_lib.analysis.engine import PredictedEngine
from qat_lib.analysis.kernels import Kernel


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
