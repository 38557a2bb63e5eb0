"""Conversion of a traced Keras model to an onnx-ir model with tf2onnx.

The result contains the weights, and metadata of each node names its layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from qat_lib.errors import ExportError
from qat_lib.export.conversion import change_opset, insert_pairs, quiet
from qat_lib.export.graph import (
    BATCH_NORM,
    LAYER,
    ORIGIN,
    TENSOR,
    UNUSED,
    BatchNorm,
    border_dimension,
    is_op,
)
from qat_lib.export.options import NEWEST_OPSET, OLDEST_OPSET
from qat_lib.keras.export.precision import float32_array
from qat_lib.keras.export.prepare import prepare_graph
from qat_lib.keras.export.recurrent import use_operators
from qat_lib.keras.export.trace import Trace, trace_model
from qat_lib.keras.structure import layers_of


def tf2onnx_opset(opset: int) -> int:
    """Return ``opset``, limited to the newest operator set supported by tf2onnx."""
    from tf2onnx import constants

    return min(opset, int(max(constants.OPSET_TO_IR_VERSION)))


def convert(model: Any, *, opset: int, batch: int | None = None) -> ir.Model:
    """Convert a Keras model without lowering.

    The Q/DQ pairs have no ranges yet, and the weights have Keras's layout.

    Args:
        model: built Keras Functional or Sequential model, quantized or not.
        opset: ONNX operator set, ``OLDEST_OPSET`` to ``NEWEST_OPSET``.
        batch: fixed batch size; None (default) leaves it open.

    Returns:
        A model with metadata in each node: the Keras layer (``node.meta["keras_layer"]``) and the
        corresponding layer of the float model (``"origin"``). Q and DQ nodes also have the name of
        their quantizer (``"quantizer"``).

    Raises:
        ExportError: the operator set is out of range, or tf2onnx does not support an op.
        UnsupportedModelError: the model has no graph of layers.
    """
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise ExportError(
            f"Expected an opset from {OLDEST_OPSET} to {NEWEST_OPSET}. Received: {opset}."
        )
    trace = trace_model(model, batch=batch)
    result = ir.serde.deserialize_model(_run_tf2onnx(trace, opset))
    # tf2onnx always imports ai.onnx.ml, too, even if no node uses it.
    for domain in set(result.graph.opset_imports) - {"", *(node.domain for node in result.graph)}:
        del result.graph.opset_imports[domain]
    _trim_identities(result)
    _bind_weights(result, trace)
    _name_io(result, trace, batch)
    _attribute(result, trace)
    insert_pairs(result, trace.markers)
    result.meta[UNUSED] = trace.unused_quantizers()
    return result


def _run_tf2onnx(trace: Trace, opset: int) -> Any:
    written = tf2onnx_opset(opset)
    try:
        proto = _convert_graph(trace, written)
    except ValueError as error:  # any error of tf2onnx, translated by _process
        raise ExportError(
            f"tf2onnx could not convert the model to operator set {opset}: {error}. "
            "Replace the layer that it names, or try a newer operator set."
        ) from error
    missing = _without_counterpart(proto, written)
    if missing:
        raise ExportError(
            f"tf2onnx has no ONNX counterpart in operator set {opset} for: "
            f"{', '.join(missing[:8])}. "
            "Replace the layer, or try a newer operator set."
        )
    # onnx converts from tf2onnx's newest operator set to a newer one.
    return proto if written == opset else change_opset(proto, opset, written)


def _without_counterpart(proto: Any, opset: int) -> list[str]:
    """Return nodes of foreign domains, then nodes missing in the operator set."""
    foreign, unmapped = set(), set()
    for node in proto.graph.node:
        described = f"{node.op_type} ({node.name})"
        if node.domain not in ("", "ai.onnx", "ai.onnx.ml"):
            foreign.add(described)
        if not _is_onnx_op(node.op_type, opset):
            unmapped.add(described)
    return [*sorted(foreign), *sorted(unmapped)]


def _convert_graph(trace: Trace, opset: int) -> Any:
    """Run tf2onnx without its optimizers; the lowering passes replace them."""
    import tensorflow as tf
    from tf2onnx import tfonnx

    with quiet("tf2onnx"), tf.Graph().as_default() as graph:
        tf.import_graph_def(prepare_graph(trace.graph_def), name="")
        try:
            converted = tfonnx.process_tf_graph(
                graph,
                opset=opset,
                input_names=[*trace.inputs, *trace.weights],
                output_names=[name for name, _ in trace.outputs],
                continue_on_error=False,
                custom_rewriter=[partial(use_operators, trace.recurrent)],
            )
        except Exception as error:  # tf2onnx raises exceptions of many types
            raise ValueError(str(error)) from error
        return converted.make_model("qatline")


def _is_onnx_op(op_type: str, opset: int) -> bool:
    import onnx

    try:
        return bool(onnx.defs.get_schema(op_type, opset, ""))
    except onnx.defs.SchemaError:
        return False


def _trim_identities(model: ir.Model) -> None:
    """Remove all but the first input of each Identity.

    tf2onnx converts TensorListFromTensor in a loop to an Identity, and leaves the element shape as
    a second input, which is invalid in ONNX.
    """
    for node in model.graph.all_nodes():
        if is_op(node, "Identity"):
            node.resize_inputs(1)


def _bind_weights(model: ir.Model, trace: Trace) -> None:
    """Replace the graph inputs for weights by initializers."""
    graph = model.graph
    for value in list(graph.inputs):
        variable = trace.weights.get(value.name or "")
        if variable is None:
            continue
        graph.inputs.remove(value)
        array = float32_array(variable)
        value.const_value = ir.Tensor(array, name=value.name)
        value.shape = ir.Shape(array.shape)
        graph.register_initializer(value)


def _name_io(model: ir.Model, trace: Trace, batch: int | None) -> None:
    """Set Keras's names of inputs and outputs, and names of open dimensions."""
    graph = model.graph
    # tf2onnx may change the order of inputs.
    order = {name: index for index, name in enumerate(trace.inputs)}
    ordered = sorted(graph.inputs, key=lambda value: order[value.name or ""])
    graph.inputs.clear()
    graph.inputs.extend(ordered)
    names = dict(trace.outputs)
    taken = set(trace.inputs.values())
    for value in graph.outputs:
        name = names[value.name or ""]
        # ONNX values share one namespace: an output must not have the name of an input.
        value.name = f"{name}_output" if name in taken else name
    for value in graph.inputs:
        value.name = trace.inputs[value.name or ""]
    for value in [*graph.inputs, *graph.outputs]:
        if value.shape is not None:
            value.shape = ir.Shape(
                [border_dimension(d, i, value.name or "", batch) for i, d in enumerate(value.shape)]
            )


def _attribute(model: ir.Model, trace: Trace) -> None:
    """Record the layer of each node, and the layer of each output tensor."""
    scopes: dict[ir.Node, str | None] = {}
    for node in reversed(model.graph):
        # Of the nodes for one operation, tf2onnx gives the last its name: the others belong to it.
        readers = (scopes[reader] for reader in node.successors() if reader in scopes)
        scope = _scope(node.name, node.outputs, trace) or next(filter(None, readers), None)
        scope = scopes[node] = scope or _scope(None, node.inputs, trace)
        if scope is not None:
            node.meta[LAYER] = trace.scopes[scope]
            node.meta[ORIGIN] = trace.origins[scope]
        for output in node.outputs:
            if output.name in trace.tensors:
                output.meta[TENSOR] = trace.tensors[output.name]
            # tf2onnx drops the shape of a Reshape with a computed target; TensorFlow infers it.
            if is_op(node, "Reshape") and output.shape is None and output.name in trace.shapes:
                shape, dtype = trace.shapes[output.name]
                output.shape, output.dtype = ir.Shape(shape), ir.DataType.from_numpy(dtype)
    norms = {path: _batch_norm(operation) for path, operation in trace.operations.items()}
    for node in model.graph:
        norm = norms.get(node.meta.get(LAYER, ""))
        if norm is not None:
            node.meta[BATCH_NORM] = norm


def _scope(node: str | None, values: Sequence[ir.Value | None], trace: Trace) -> str | None:
    """Return the name scope of a node's name, or else of one of its values."""
    for name in (node, *(value.name for value in values if value is not None)):
        scope = (name or "").partition("/")[0]
        if scope in trace.scopes:
            return scope
    return None


def _batch_norm(operation: Any) -> BatchNorm | None:
    """Return the parameters of a BatchNormalization, also inside a wrapper; else None."""
    import keras

    if not isinstance(operation, keras.Layer):
        return None
    layers = [x for x in layers_of(operation) if isinstance(x, keras.layers.BatchNormalization)]
    if len(layers) != 1:
        return None
    (layer,) = layers
    mean, variance = float32_array(layer.moving_mean), float32_array(layer.moving_variance)
    return BatchNorm(
        gamma=float32_array(layer.gamma) if layer.scale else np.ones_like(mean),
        beta=float32_array(layer.beta) if layer.center else np.zeros_like(mean),
        mean=mean,
        variance=variance,
        epsilon=float(layer.epsilon),
    )
