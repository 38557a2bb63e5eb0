"""Edit a traced TensorFlow graph so that tf2onnx converts it without touching what must stay."""

from __future__ import annotations

from typing import Any

from qat_lib.export.trace import MARKER


def prepare_graph(graph_def: Any) -> Any:
    """Return a copy of a ``GraphDef`` with markers as identities and ``Erfc`` written with ``Erf``."""
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    for node in list(result.node):
        if node.op == "QuantizeAndDequantizeV3" and node.name.rpartition("/")[2].startswith(MARKER):
            _as_identity(node)
        elif node.op == "Erfc":
            _with_erf(result, node)
    return result


def _as_identity(node: Any) -> None:
    """Make an Identity of a marker.

    tf2onnx would make a Q/DQ pair of it and then rewrite the weight in front, which it expects to be a constant; an
    Identity passes through untouched, and :mod:`qat_lib.export.convert` makes the pair.
    """
    node.op = "Identity"
    del node.input[1:]
    for key in set(node.attr) - {"T", "_output_shapes"}:
        del node.attr[key]


def _with_erf(graph_def: Any, node: Any) -> None:
    """Replace ``erfc(x)``, which Keras's exact GELU uses and tf2onnx lacks, by ``1 - erf(x)``."""
    import tensorflow as tf

    dtype = node.attr["T"]
    erf = graph_def.node.add(name=f"{node.name}/erf", op="Erf", input=list(node.input))
    one = graph_def.node.add(name=f"{node.name}/one", op="Const")
    for made in (erf, one):
        made.attr["dtype" if made is one else "T"].CopyFrom(dtype)
    one.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1.0, dtype=dtype.type))
    if "_output_shapes" in node.attr:
        erf.attr["_output_shapes"].CopyFrom(node.attr["_output_shapes"])
    node.op = "Sub"
    del node.input[:]
    node.input.extend([one.name, erf.name])
