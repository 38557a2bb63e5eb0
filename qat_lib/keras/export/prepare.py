"""Preparation of a traced TensorFlow graph for a faithful conversion by tf2onnx."""

from __future__ import annotations

from typing import Any

import numpy as np

from qat_lib.keras.export.precision import use_float32


def prepare_graph(graph_def: Any) -> Any:
    """Return a copy of a ``GraphDef`` prepared for tf2onnx.

    The copy uses float32 instead of half precision, ``Erf`` instead of ``Erfc``, products instead
    of ``RFFT``, and constant output sizes. A Pad before a convolution with explicit padding remains
    a separate node. Left out are two reversals in a row, the order of zeros by their signs in Keras's
    argmax and argmin, and the conversion of negative indices.
    """
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    use_float32(result)
    for node in list(result.node):
        if node.op == "Erfc":
            _with_erf(result, node)
        elif node.op == "RFFT":
            _with_products(result, node)
        elif node.op in ("Conv2DBackpropInput", "Conv3DBackpropInputV2"):
            _with_constant_size(result, node)
    _keep_padding(result)
    _leave_out_reversals(result)
    _leave_out_signs_of_zero(result)
    _leave_out_negative_indices(result)
    for function in result.library.function:
        _with_erf_inside(function)
    return result


def _with_erf(graph_def: Any, node: Any) -> None:
    """Replace ``erfc(x)`` by ``1 - erf(x)``.

    Keras's exact GELU uses erfc, and tf2onnx does not support it. GELU calls it with ``-x * c``;
    ``1 + erf(x * c)`` has the same value, and engines recognize this form as GELU.
    """
    import tensorflow as tf

    dtype = node.attr["T"]
    source, negated = _without_sign(graph_def, node)
    erf = graph_def.node.add(name=f"{node.name}/erf", op="Erf", input=[source])
    one = graph_def.node.add(name=f"{node.name}/one", op="Const")
    for made in (erf, one):
        made.attr["dtype" if made is one else "T"].CopyFrom(dtype)
    one.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1.0, dtype=dtype.type))
    if "_output_shapes" in node.attr:
        erf.attr["_output_shapes"].CopyFrom(node.attr["_output_shapes"])
    # The node keeps its name, so its readers don't change.
    node.op = "AddV2" if negated else "Sub"
    del node.input[:]
    node.input.extend([one.name, erf.name])


def _with_products(graph_def: Any, node: Any) -> None:
    """Replace the parts of a Fourier transform of real numbers by products with its matrix.

    tf2onnx converts the absolute values alone, and OpenVINO lacks ONNX's operators for the others.
    """
    import tensorflow as tf

    made_by = {other.name: other for other in graph_def.node}
    readers = [x for x in graph_def.node if node.name in map(node_of, x.input)]
    shapes = made_by[node_of(node.input[0])].attr["_output_shapes"].list.shape
    size = shapes[0].dim[-1].size if shapes and shapes[0].dim else -1
    if size < 1 or not {x.op for x in readers} <= {"Real", "Imag", "ComplexAbs"}:
        return  # tf2onnx refuses it
    angles = 2 * np.pi / size * np.outer(np.arange(size), np.arange(size // 2 + 1))
    floats = tf.float32.as_datatype_enum

    def add(op: str, name: str, *inputs: str, key: str = "T") -> str:
        made = graph_def.node.add(name=name, op=op, input=inputs)
        made.attr[key].type = floats
        return name

    def product(part: np.ndarray, name: str) -> str:
        matrix = add("Const", f"{name}/matrix", key="dtype")
        value = tf.make_tensor_proto(part.astype(np.float32))
        graph_def.node[-1].attr["value"].tensor.CopyFrom(value)
        return add("BatchMatMulV2", name, node.input[0], matrix)

    for reader in readers:
        name, op = reader.name, reader.op
        graph_def.node.remove(reader)
        if op == "ComplexAbs":
            parts = product(np.cos(angles), f"{name}/real"), product(np.sin(angles), f"{name}/imag")
            squares = [add("Square", f"{part}/square", part) for part in parts]
            add("Sqrt", name, add("AddV2", f"{name}/sum", *squares))
        else:
            product(np.cos(angles) if op == "Real" else -np.sin(angles), name)
    graph_def.node.remove(node)


def _with_erf_inside(function: Any) -> None:
    """Replace ``erfc(x)`` by ``1 - erf(x)`` in a branch, whose tensors are ``node:argument:0``."""
    import tensorflow as tf

    for node in [node for node in function.node_def if node.op == "Erfc"]:
        dtype = node.attr["T"]
        erf = function.node_def.add(name=f"{node.name}/erf", op="Erf", input=list(node.input))
        one = function.node_def.add(name=f"{node.name}/one", op="Const")
        for made in (erf, one):
            made.attr["dtype" if made is one else "T"].CopyFrom(dtype)
        one.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1.0, dtype=dtype.type))
        node.op = "Sub"
        del node.input[:]
        node.input.extend([f"{one.name}:output:0", f"{erf.name}:y:0"])
        old, new = f"{node.name}:y:0", f"{node.name}:z:0"
        for reader in function.node_def:
            reader.input[:] = [new if name == old else name for name in reader.input]
        for name, tensor in list(function.ret.items()):
            if tensor == old:
                function.ret[name] = new


def _without_sign(graph_def: Any, node: Any) -> tuple[str, bool]:
    """Return (x, True) if the operand of ``node`` is ``-x``, else (operand, False)."""
    by_name = {other.name: other for other in graph_def.node}
    (source,) = node.input
    product = by_name.get(node_of(source))
    if product is None or product.op != "Mul":
        return source, False
    for index, name in enumerate(product.input):
        # The product has the sign of either factor.
        minus = by_name.get(node_of(name))
        if minus is not None and minus.op == "Neg":
            (negated,) = minus.input
            factors = [negated if i == index else other for i, other in enumerate(product.input)]
            positive = graph_def.node.add(name=f"{node.name}/product", op="Mul", input=factors)
            for key in set(product.attr) & {"T", "_output_shapes"}:
                positive.attr[key].CopyFrom(product.attr[key])
            return positive.name, True
    return source, False


def _with_constant_size(graph_def: Any, node: Any) -> None:
    """Replace the computed output size of a transposed convolution by a constant.

    Only the batch size may be open. Keras computes the output size from the input size at run time.
    tf2onnx handles this in two and three dimensions; in one dimension, it computes the largest
    output and crops it with thirty nodes of shape arithmetic.
    """
    import tensorflow as tf

    shapes = node.attr["_output_shapes"].list.shape
    size = [dim.size for dim in shapes[0].dim] if shapes else []
    if not size or min(size[1:]) < 0:  # -1 is an open dimension
        return
    constant = graph_def.node.add(name=f"{node.name}/size", op="Const")
    constant.attr["dtype"].type = tf.int32.as_datatype_enum
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(size, dtype=tf.int32))
    node.input[0] = constant.name


def _keep_padding(graph_def: Any) -> None:
    """Replace a Pad before a convolution with explicit padding by PadV2.

    tf2onnx merges a Pad into the following convolution and overwrites its explicit padding, both
    for ``Conv2D`` and for the SpaceToBatchND of a dilated convolution. It does not merge PadV2; the
    lowering pass ``merge_padding`` adds both paddings later.
    """
    import tensorflow as tf

    pads = {node.name: node for node in graph_def.node if node.op == "Pad"}
    for node in list(graph_def.node):
        explicit = node.op == "Conv2D" and node.attr["padding"].s == b"EXPLICIT"
        if not explicit and node.op != "SpaceToBatchND":
            continue
        pad = pads.pop(node_of(node.input[0]), None)
        if pad is None:
            continue
        dtype = pad.attr["T"]
        zero = graph_def.node.add(name=f"{pad.name}/zero", op="Const")
        zero.attr["dtype"].CopyFrom(dtype)
        zero.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, dtype=dtype.type))
        pad.op = "PadV2"
        pad.input.append(zero.name)


def _leave_out_reversals(graph_def: Any) -> None:
    """Replace a reversal of a reversal, as of the outputs of a Bidirectional layer."""
    by_name = {node.name: node for node in graph_def.node}
    for node in graph_def.node:
        if node.op != "ReverseV2":
            continue
        inner, axes = (by_name[node_of(name)] for name in node.input[:2])
        if inner.op != "ReverseV2" or axes.op != "Const":
            continue
        if by_name[node_of(inner.input[1])].attr["value"] == axes.attr["value"]:
            node.op = "Identity"
            node.input[:] = [inner.input[0]]
            del node.attr["Tidx"]


def _leave_out_signs_of_zero(graph_def: Any) -> None:
    """Let argmax and argmin compare numbers alone.

    Keras ranks -0.0 below 0.0, by the sign bit. ONNX has no operator to read it.
    """
    by_name = {node.name: node for node in graph_def.node}

    def made_by(node: Any, *ops: str) -> bool:
        """Return whether a chain of first operands consists of these operators."""
        for op in ops:
            node = by_name.get(node_of(node.input[0])) if node.input else None
            if node is None or node.op != op:
                return False
        return True

    for node in graph_def.node:
        if node.op != "SelectV2" or not made_by(node, "LogicalAnd"):
            continue
        condition, _, value = node.input[:3]
        less = by_name[node_of(by_name[node_of(condition)].input[1])]
        if less.op == "Less" and made_by(less, "BitwiseAnd", "Bitcast"):
            node.op = "Identity"
            node.input[:] = [value]


def _leave_out_negative_indices(graph_def: Any) -> None:
    """Let a Gather read negative indices: they count from the end in ONNX, too.

    Keras adds the size to those, in an Embedding by ten nodes of ONNX.
    """
    import tensorflow as tf

    by_name = {node.name: node for node in graph_def.node}

    def constant(name: str) -> Any:
        node = by_name[node_of(name)]
        return tf.make_ndarray(node.attr["value"].tensor) if node.op == "Const" else None

    def number(name: str) -> int | None:
        """Return a constant integer, also if it is cast or one of the sizes of a shape."""
        node = by_name[node_of(name)]
        if node.op == "Cast":
            return number(node.input[0])
        if node.op == "StridedSlice":
            sizes, start = (constant(each) for each in node.input[:2])
            is_size = sizes is not None and sizes.ndim == 1 and start is not None
            return int(sizes[start[0]]) if is_size and start.shape == (1,) else None
        value = constant(name)
        return None if value is None or value.size != 1 else int(value.item())

    for node in graph_def.node:
        if node.op != "GatherV2":
            continue
        table, select = (by_name[node_of(name)] for name in node.input[:2])
        axis = number(node.input[2])
        if select.op != "SelectV2" or "_output_shapes" not in table.attr or axis is None:
            continue
        sizes = [dim.size for shape in table.attr["_output_shapes"].list.shape for dim in shape.dim]
        less, added, indices = (by_name[node_of(name)] for name in select.input[:3])
        if (less.op, added.op) != ("Less", "AddV2") or not -len(sizes) <= axis < len(sizes):
            continue
        reads = [(node_of(each.input[0]), number(each.input[1])) for each in (less, added)]
        if reads == [(indices.name, 0), (indices.name, sizes[axis])]:
            node.input[1] = select.input[2]


def node_of(tensor: str) -> str:
    """Return the name of the node that computes a tensor."""
    return tensor.lstrip("^").partition(":")[0]
