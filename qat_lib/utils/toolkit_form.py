"""Rewrite exported graphs in the form of NVIDIA's tensorflow-quantization toolkit.

The form serves comparison. Engines accept the form of ``qat_lib.export_onnx`` equally well: its
readers of a tensor share one Q/DQ pair, and a Dense layer is one Gemm.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from qat_lib.graph.roles import PAIR
from qat_lib.onnx_view.graph import OnnxGraph

RECORD = ("qatline.quantizers", "qatline.tensors", "qatline.nodes")
"""Keys of metadata about the nodes and tensors of the original form."""


def to_toolkit_form(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of an exported model in the toolkit's form.

    - Each reader of a quantized tensor gets a separate Q/DQ pair. Each quantized layer also gets
      a pair behind operators that keep values on the quantizer's grid (MaxPool, Pad, Relu,
      Reshape, ...): the engine propagates the range through these operators, but the toolkit
      quantizes the inputs of each layer. The repeated quantization is exact.
    - A Gemm becomes a MatMul and an Add.
    - Q and DQ nodes are named ``QuantLinearNode__<number>`` and ``DequantLinearNode__<number>``.
      Other nodes keep the name of their layer: ``<layer>/<operator>``.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    kept = [entry for entry in result.metadata_props if entry.key not in RECORD]
    # The record of nodes and tensors does not fit the rewritten graph.
    del result.metadata_props[:]
    result.metadata_props.extend(kept)
    nodes = [part for node in graph.node for part in _without_gemm(node)]
    del graph.node[:]
    graph.node.extend(nodes)
    nodes = _one_pair_per_reader(result)
    for number, node in enumerate(nodes):
        if node.op_type in PAIR:
            kind = "Quant" if node.op_type == "QuantizeLinear" else "Dequant"
            node.name = f"{kind}LinearNode__{number}"
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(result)
    return result


def _without_gemm(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the replacement of ``node`` without Gemms.

    The export writes Gemms without attributes.
    """
    if node.op_type != "Gemm" or node.attribute:
        return [node]
    layer = node.name.rpartition("/")[0]
    product = f"{node.output[0]}/MatMul"
    return [
        onnx.helper.make_node("MatMul", list(node.input[:2]), [product], f"{layer}/MatMul"),
        onnx.helper.make_node(
            "Add", [product, node.input[2]], list(node.output), f"{layer}/BiasAdd"
        ),
    ]


def _one_pair_per_reader(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    view = OnnxGraph(model)
    made = {name: node for node in model.graph.node for name in node.output}
    taken = {value.name for value in model.graph.output}
    result: list[onnx.NodeProto] = []
    for original in model.graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        for index, name in enumerate(original.input):
            copy = f"{name}/{node.name or node.output[0]}:{index}"
            source = made.get(name)
            if source is None:
                continue
            if source.op_type == "DequantizeLinear":
                pair = _copy_pair(source, made, copy) if name in taken else []
                # The first reader keeps the original pair; a graph output counts as a reader.
                taken.add(name)
            else:
                carried = _carried_range(view, name) if _enters_layer(node, source) else None
                pair = [] if carried is None else _copy_pair(made[carried], made, copy, name)
            if pair:
                result.extend(pair)
                node.input[index] = copy
        result.append(node)
    return result


def _enters_layer(reader: onnx.NodeProto, source: onnx.NodeProto) -> bool:
    """Return whether the edge between two nodes leads into a quantized layer.

    The export calls the nodes of quantized layers ``quant_<layer>/<operator>``.
    """
    layer = reader.name.rpartition("/")[0]
    quantized: bool = layer.rpartition("/")[2].startswith("quant_")
    return quantized and bool(layer != source.name.rpartition("/")[0])


def _carried_range(view: OnnxGraph, tensor: str) -> str | None:
    """Return the dequantized tensor with the same quantization grid as ``tensor``, if any.

    Clips are excluded because their upper bound may lie off the grid, and per-channel scales
    because another operator may move their axis.
    """
    node = view.producer(tensor)
    while node is not None and (node.op == "Relu" or view.moves_values(node)):
        tensor = node.input(0)
        node = view.producer(tensor)
    if node is None or node.op != "DequantizeLinear" or view.is_constant(tensor):
        return None
    return tensor if view.shape(node.input(1)) in ((), (1,)) else None


def _copy_pair(
    dequantize: onnx.NodeProto,
    made: Mapping[str, onnx.NodeProto],
    name: str,
    source: str | None = None,
) -> list[onnx.NodeProto]:
    """Return copies of a DQ and its Q, if any; the Q reads ``source`` if given.

    A DQ of stored integers has no Q.
    """
    copy = onnx.NodeProto()
    copy.CopyFrom(dequantize)
    copy.output[0] = name
    quantize = made.get(dequantize.input[0])
    if quantize is None:
        return [copy]
    first = onnx.NodeProto()
    first.CopyFrom(quantize)
    first.output[0] = f"{name}/integers"
    if source is not None:
        first.input[0] = source
    copy.input[0] = first.output[0]
    return [first, copy]
