"""Rewrite exported graphs in the form of NVIDIA's toolkit.

The toolkit is tensorflow-quantization; the form serves comparison. Engines take the form of
``qat_lib.export_onnx`` at least as well: there, readers of a tensor share one Q/DQ pair, and a
Dense layer is one Gemm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from qat_lib.graph.roles import PAIR

RECORD = ("qatline.quantizers", "qatline.tensors", "qatline.nodes")
"""Metadata that name the nodes and tensors of the original form."""


def to_toolkit_form(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of an exported model in the toolkit's form.

    - Each reader of a quantized tensor has a Q/DQ pair of its own.
    - A Gemm is a MatMul and an Add.
    - Q and DQ nodes are called ``QuantLinearNode__<number>`` and ``DequantLinearNode__<number>``.
      Other nodes keep the name of their layer: ``<layer>/<operator>``.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    nodes = [part for node in graph.node for part in _without_gemm(node)]
    nodes = _one_pair_per_reader(nodes, {value.name for value in graph.output})
    for number, node in enumerate(nodes):
        if node.op_type in PAIR:
            kind = "Quant" if node.op_type == "QuantizeLinear" else "Dequant"
            node.name = f"{kind}LinearNode__{number}"
    del graph.node[:]
    graph.node.extend(nodes)
    kept = [entry for entry in result.metadata_props if entry.key not in RECORD]
    del result.metadata_props[:]
    result.metadata_props.extend(kept)
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


def _one_pair_per_reader(nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    made = {name: node for node in nodes for name in node.output}
    taken = set(outputs)
    result: list[onnx.NodeProto] = []
    for node in nodes:
        for index, name in enumerate(node.input):
            source = made.get(name)
            if source is None or source.op_type != "DequantizeLinear":
                continue
            if name in taken:
                copies = _copy_pair(source, made, f"{name}/{node.name or node.output[0]}:{index}")
                result.extend(copies)
                node.input[index] = copies[-1].output[0]
            taken.add(name)
        result.append(node)
    return result


def _copy_pair(
    dequantize: onnx.NodeProto, made: Mapping[str, onnx.NodeProto], name: str
) -> list[Any]:
    """Return copies of a DQ and its Q, if any.

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
    copy.input[0] = first.output[0]
    return [first, copy]
