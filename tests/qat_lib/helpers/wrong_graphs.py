"""Faults planted in an INT8 graph, as a backend that computes wrongly would make them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from qat_lib.engines.openvino_forms import SoundForm, sound_form

WEIGHTED = ("Conv", "MatMul", "Gemm")


def wrong_graphs(
    model: ModelProto, *, layers: int = 8, seed: int = 1
) -> Iterator[tuple[str, ModelProto]]:
    """Yield wrong copies of a graph, each with a name for its fault.

    A channel that is zeroed or swapped has the median norm of its layer: in trained networks some
    channels are zero already.

    Args:
        model: a graph with INT8 weights and Q/DQ pairs.
        layers: number of layers, spread over the graph, that get faults.
        seed: seed of the noise on weights.
    """
    graph = _Graph(model)
    random = np.random.default_rng(seed)
    for number, node in spread(graph.weighted(), layers):
        dequantize = graph.producers[node.input[1]]
        integers, scale = (graph.array(name) for name in dequantize.input[:2])
        axis = next((a.i for a in dequantize.attribute if a.name == "axis"), 1)
        rows = np.moveaxis(integers, axis, 0)
        yield f"scale of weights x 1.2, {number}", graph.with_input(dequantize, 1, scale * 1.2)
        first, second = _middle_channels(rows, scale)
        changed = rows.copy()
        changed[first] = 0
        yield f"channel zeroed, {number}", graph.with_array(dequantize, changed, axis)
        changed = rows.copy()
        changed[[first, second]] = rows[[second, first]]
        yield f"channels swapped, {number}", graph.with_array(dequantize, changed, axis)
        noisy = rows.astype(int) + random.integers(-20, 21, rows.shape)
        yield (
            f"noise of 20 on weights, {number}",
            graph.with_array(dequantize, np.clip(noisy, -127, 127), axis),
        )
    yield "biases zeroed", graph.without_biases()
    for number, node in spread(graph.limits(), 3):
        yield f"{node.op_type} removed, {number}", graph.without(node)
    for number, node in spread(graph.unsigned_pairs(), 3):
        yield f"ReLU of quantizer removed, {number}", graph.with_negatives(node)
    for number, node in spread(graph.activation_pairs(), 4):
        zero, scale = graph.array(node.input[2]), graph.array(node.input[1])
        yield f"zero point + 3, {number}", graph.with_input(node, 2, zero + zero.dtype.type(3))
        yield f"scale of activation x 1.2, {number}", graph.with_input(node, 1, scale * 1.2)


def planted(wrong: ModelProto) -> Callable[..., SoundForm]:
    """Return a replacement of ``openvino.sound_form`` with which engines compute a wrong graph."""

    def form(file: Path, *target: Any) -> SoundForm:
        copied = file.with_name("wrong.onnx")
        copied.write_bytes(wrong.SerializeToString())
        found = sound_form(copied, *target)
        return found if found.data else SoundForm(data=wrong.SerializeToString())

    return form


def spread(nodes: Sequence[NodeProto], count: int) -> list[tuple[int, NodeProto]]:
    """Return at most ``count`` nodes from first to last, with their numbers."""
    chosen = sorted(set(np.linspace(0, len(nodes) - 1, count).astype(int))) if nodes else []
    return [(int(number), nodes[number]) for number in chosen]


def _middle_channels(rows: np.ndarray[Any, Any], scale: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the channel of median norm, and the next larger one."""
    norms = np.linalg.norm(rows.reshape(len(rows), -1).astype(float), axis=1)
    order = np.argsort(norms * scale)
    middle = (len(order) - 1) // 2
    return int(order[middle]), int(order[middle + 1])


class _Graph:
    """Makes changed copies of a model."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self.producers = {name: node for node in model.graph.node for name in node.output}

    def array(self, name: str) -> np.ndarray[Any, Any]:
        return numpy_helper.to_array(self.constants[name])

    def of(self, *ops: str) -> list[NodeProto]:
        return [node for node in self.model.graph.node if node.op_type in ops]

    def weighted(self) -> list[NodeProto]:
        found = []
        for node in self.of(*WEIGHTED):
            source = self.producers.get(node.input[1])
            if source is not None and source.op_type == "DequantizeLinear":
                found.append(node)
        return found

    def activation_pairs(self) -> list[NodeProto]:
        """Return the DQ nodes of activations."""
        return [node for node in self.of("DequantizeLinear") if node.input[0] in self.producers]

    def unsigned_pairs(self) -> list[NodeProto]:
        """Return the DQ nodes behind a quantizer that is a ReLU as well."""
        found = []
        for node in self.activation_pairs():
            zero = self.array(node.input[2])
            if zero.dtype == np.uint8 and not zero.any():
                found.append(node)
        return found

    def limits(self) -> list[NodeProto]:
        """Return the ReLUs and clips that no quantizer repeats."""
        repeated = set()
        for node in self.unsigned_pairs():
            repeated.add(self.producers[node.input[0]].input[0])
        return [node for node in self.of("Relu", "Clip") if node.output[0] not in repeated]

    def with_negatives(self, node: NodeProto) -> ModelProto:
        """Return a copy in which a Q/DQ pair has negative numbers, and steps twice as large."""
        changed = copy.deepcopy(self.model)
        quantize = self.producers[node.input[0]]
        graph = changed.graph
        scale = np.asarray(self.array(node.input[1]) * 2, np.float32)
        graph.initializer.append(numpy_helper.from_array(scale, "planted scale"))
        graph.initializer.append(numpy_helper.from_array(np.uint8(128), "planted zero"))
        for each in (quantize, node):
            copied = _same(changed, each)
            copied.input[1], copied.input[2] = "planted scale", "planted zero"
        names = {each.output[0]: each.input[0] for each in self.of("Relu", "Clip")}
        copied = _same(changed, quantize)
        copied.input[0] = names.get(copied.input[0], copied.input[0])
        return changed

    def with_input(self, node: NodeProto, position: int, value: Any) -> ModelProto:
        """Return a copy in which this node alone reads another constant."""
        changed = copy.deepcopy(self.model)
        old = self.array(node.input[position])
        tensor = numpy_helper.from_array(np.asarray(value, old.dtype), "planted")
        changed.graph.initializer.append(tensor)
        _same(changed, node).input[position] = "planted"
        return changed

    def with_array(self, node: NodeProto, rows: Any, axis: int) -> ModelProto:
        """Return a copy with other INT8 weights, given with ``axis`` in front."""
        weights = np.ascontiguousarray(np.moveaxis(rows, 0, axis).astype(np.int8))
        return self.with_input(node, 0, weights)

    def without_biases(self) -> ModelProto:
        changed = copy.deepcopy(self.model)
        biases = {node.input[2] for node in self.of(*WEIGHTED) if len(node.input) > 2}
        for node in self.of("Add"):  # of a matrix product
            biases.update(name for name in node.input if name in self.constants)
        for tensor in changed.graph.initializer:
            if tensor.name in biases:
                zeros = np.zeros_like(numpy_helper.to_array(tensor))
                tensor.CopyFrom(numpy_helper.from_array(zeros, tensor.name))
        return changed

    def without(self, node: NodeProto) -> ModelProto:
        """Return a copy whose readers of a node read its input."""
        changed = copy.deepcopy(self.model)
        for reader in changed.graph.node:
            for position, name in enumerate(reader.input):
                if name == node.output[0]:
                    reader.input[position] = node.input[0]
        return changed


def _same(model: ModelProto, node: NodeProto) -> NodeProto:
    return next(each for each in model.graph.node if each.output[0] == node.output[0])
