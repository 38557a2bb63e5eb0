"""Rewrite exported graphs in the form of NVIDIA's toolkit.

The toolkit is tensorflow-quantization; the form serves comparison. Engines take the form of
``qat_lib.export_onnx`` at least as well: there, readers of a tensor share one Q/DQ pair, and a
Dense layer is one Gemm.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from qat_lib.analysis.propagation import commutes_with_quantizers
from qat_lib.graph.roles import PAIR
from qat_lib.onnx_view.graph import OnnxGraph

RECORD = ("qatline.quantizers", "qatline.tensors", "qatline.nodes")
"""Metadata that name the nodes and tensors of the original form."""


def to_toolkit_form(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of an exported model in the toolkit's form.

    - Each reader of a quantized tensor has a Q/DQ pair of its own. Each quantized layer also has
      one behind operators that keep values on the quantizer's grid (MaxPool, Pad, Relu, Reshape,
      ...): the engine carries the range through these, but the toolkit quantizes the inputs of
      each layer. Quantizing such a value again does not change a bit.
    - A Gemm is a MatMul and an Add.
    - Q and DQ nodes are called ``QuantLinearNode__<number>`` and ``DequantLinearNode__<number>``.
      Other nodes keep the name of their layer: ``<layer>/<operator>``.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    kept = [entry for entry in result.metadata_props if entry.key not in RECORD]
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
    """Return the nodes that stand for ``node``, without Gemms.

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
    """Return the dequantized tensor whose grid the values of ``tensor`` are on, if any.

    Clips are left out: their upper bound need not be on the grid. So are ranges of single channels,
    whose axis another operator may move.
    """
    node = view.producer(tensor)
    while node is not None and (node.op == "Relu" or commutes_with_quantizers(view, node)):
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

    A DQ that reads stored integers has no Q.
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
