"""CPU time of ``analyze_onnx`` by number of nodes and graph shape.

    python benchmarks/analysis_scaling.py [--nodes 5000 20000 100000]

Prints seconds for each shape and size, and the exponent of growth between the last two sizes: 1 is
linear.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from math import log
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qat_lib.analysis import analyze_onnx

SIZES = (5_000, 20_000, 100_000)


class Graph:
    """Nodes and constants of a graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants = [
            numpy_helper.from_array(np.float32(0.1), "scale"),
            numpy_helper.from_array(np.int8(0), "zero"),
            numpy_helper.from_array(np.ones((16, 16, 1, 1), np.int8), "integers"),
        ]
        self.weight = self.add("DequantizeLinear", "integers", "scale", "zero")

    def add(self, op: str, *inputs: str, **attributes: int) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def quantized(self, x: str) -> str:
        integers = self.add("QuantizeLinear", x, "scale", "zero")
        return self.add("DequantizeLinear", integers, "scale", "zero")

    def convolved(self, x: str) -> str:
        return self.add("Conv", x, self.weight)

    def save(self, path: Path, output: str) -> None:
        image = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16, 8, 8))
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        body = helper.make_graph(self.nodes, "graph", [image], outputs, self.constants)
        model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path.write_bytes(model.SerializeToString())


def chain(graph: Graph, nodes: int) -> str:
    """Convolution, ReLU, Q and DQ, one after the other."""
    x = "x"
    while len(graph.nodes) < nodes:
        x = graph.add("Relu", graph.convolved(graph.quantized(x)))
    return x


def elementwise(graph: Graph, nodes: int) -> str:
    """One long run of floating-point activations."""
    x = "x"
    while len(graph.nodes) < nodes:
        x = graph.add("Relu", x)
    return x


def residual(graph: Graph, nodes: int) -> str:
    """Residual blocks whose shortcut is quantized."""
    x = "x"
    while len(graph.nodes) < nodes:
        shortcut = graph.quantized(x)
        x = graph.add("Relu", graph.add("Add", graph.convolved(shortcut), shortcut))
    return x


def fan_out(graph: Graph, nodes: int) -> str:
    """Branches of one tensor that meet in one Concat."""
    x, branches = graph.quantized("x"), []
    while len(graph.nodes) < nodes:
        branches.append(graph.add("Tanh", graph.add("Add", x, graph.convolved(x))))
    return graph.add("Concat", *branches, axis=1)


def deep_concat(graph: Graph, nodes: int) -> str:
    """Dense blocks: each layer reads its predecessor's input and output, concatenated."""
    x = "x"
    while len(graph.nodes) < nodes:
        branch = graph.quantized(graph.convolved(graph.quantized(x)))
        x = graph.add("Concat", graph.quantized(x), branch, axis=1)
    return x


def tapped_copies(graph: Graph, nodes: int) -> str:
    """A chain of Identities, each also read by an operator."""
    x, taps = "x", []
    while len(graph.nodes) < nodes:
        x = graph.add("Identity", x)
        taps.append(graph.add("Relu", x))
    return graph.add("Concat", *taps, axis=1)


SHAPES: dict[str, Callable[[Graph, int], str]] = {
    "chain": chain,
    "elementwise run": elementwise,
    "residual chain": residual,
    "wide fan-out": fan_out,
    "deep concat": deep_concat,
    "tapped copies": tapped_copies,
}


def seconds(shape: Callable[[Graph, int], str], nodes: int) -> float:
    """Return the CPU time of one analysis of about ``nodes`` nodes."""
    graph = Graph()
    output = shape(graph, nodes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        graph.save(path, output)
        began = time.process_time()
        analyze_onnx(path)
        return time.process_time() - began


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    options = parser.parse_args(arguments)
    sys.stdout.write(
        f"{'shape':>16} " + " ".join(f"{n:>10,}" for n in options.nodes) + "  exponent\n"
    )
    for name in options.shapes:
        times = [seconds(SHAPES[name], nodes) for nodes in options.nodes]
        growth = ""
        if len(times) > 1:
            ratio = options.nodes[-1] / options.nodes[-2]
            growth = f"{log(times[-1] / times[-2]) / log(ratio):.2f}"
        sys.stdout.write(f"{name:>16} " + " ".join(f"{t:>8.2f} s" for t in times) + f"  {growth}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
