"""Inputs of the graph: embedded preprocessing, and channels-first images."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.errors import ExportError
from qat_lib.export.graph import (
    LAYER,
    add_constant,
    attribute,
    consumers,
    is_op,
    lowering_pass,
    replace,
)
from qat_lib.preprocessing import AnyPreprocessing, Preprocessing

DTYPES = {"uint8": ir.DataType.UINT8, "float32": ir.DataType.FLOAT}


@lowering_pass
def embed_preprocessing(
    model: ir.Model, preprocessing: AnyPreprocessing, layout: str = "NHWC"
) -> None:
    """Preprocess raw images in the graph, in the float32 arithmetic of ``Preprocessing``.

    Args:
        model: the graph.
        preprocessing: preprocessing of the input.
        layout: axis order of raw images. Default ``"NHWC"``.

    Raises:
        ExportError: the model has several inputs, or the shape of its input differs from the
            preprocessing.
    """
    graph = model.graph
    if len(graph.inputs) != 1 or not isinstance(preprocessing, Preprocessing):
        raise ExportError(
            "Expected a model with one input to put the preprocessing into. Received "
            f"{len(graph.inputs)} inputs. "
            "Export without embed_preprocessing."
        )
    value = graph.inputs[0]
    if value.shape is None:
        return
    shape = [dim if isinstance(dim, int) else None for dim in value.shape[1:]]
    image = preprocessing.image_shape
    channels_first = layout == "NCHW" and len(image) == 3
    if channels_first:
        image = (image[-1], *image[:-1])
    if len(shape) != len(image) or any(
        d not in (None, e) for d, e in zip(shape, image, strict=True)
    ):
        raise ExportError(
            f"Expected inputs of the model's input shape {shape}. The preprocessing gives "
            f"{list(image)}. Pass the preprocessing that the model was trained "
            "with."
        )
    batch = value.shape[0]
    nodes: list[ir.Node] = []

    def step(op_type: str, operand: ir.Value | None = None, to: ir.DataType | None = None) -> None:
        source = nodes[-1].outputs[0] if nodes else value
        inputs = [source] if operand is None else [source, operand]
        node = ir.node(op_type, inputs, None if to is None else {"to": int(to)})
        node.outputs[0].dtype, node.outputs[0].shape = ir.DataType.FLOAT, value.shape
        node.meta[LAYER] = "preprocessing"
        nodes.append(node)

    raw = DTYPES[preprocessing.dtype]
    if raw != ir.DataType.FLOAT:
        step("Cast", to=ir.DataType.FLOAT)
    for op_type, array, neutral in (
        # In the order of Preprocessing.apply: float32 results depend on the order.
        ("Mul", np.float32(preprocessing.scale), 1.0),
        ("Sub", np.asarray(preprocessing.mean, np.float32), 0.0),
        ("Div", np.asarray(preprocessing.std, np.float32), 1.0),
    ):
        if np.any(array != neutral):
            operand = np.asarray(array, np.float32)
            if operand.ndim and channels_first:
                operand = operand.reshape(-1, 1, 1)
            step(op_type, add_constant(graph, operand, f"preprocessing/{op_type}"))
    if not nodes:
        return
    # Without the first preprocessing node, which also reads the input.
    readers = [use for use in value.uses() if use.node not in nodes]
    for use in readers:
        use.node.replace_input_with(use.idx, nodes[-1].outputs[0])
    value.dtype = raw
    value.shape = ir.Shape([batch, *image])
    graph.insert_before(graph[0], nodes)


@lowering_pass
def convert_inputs_to_nchw(model: ir.Model) -> None:
    """Convert inputs of rank 4 to NCHW."""
    graph = model.graph
    for value in graph.inputs:
        if value.shape is None or len(value.shape) != 4:
            continue
        shape = value.shape
        readers = consumers(value)
        direct = [
            n for n in readers if is_op(n, "Transpose") and attribute(n, "perm") == [0, 3, 1, 2]
        ]
        value.shape = ir.Shape([shape[0], shape[3], shape[1], shape[2]])
        # Other readers get the NHWC form back.
        if len(direct) < len(readers):
            back = ir.node("Transpose", [value], {"perm": [0, 2, 3, 1]})
            back.outputs[0].shape, back.outputs[0].type = shape, value.type
            back.meta[LAYER] = value.name
            for node in readers:
                for index, source in enumerate(node.inputs):
                    if source is value and node not in direct:
                        node.replace_input_with(index, back.outputs[0])
            graph.insert_before(graph[0], back)
        for node in direct:
            replace(node.outputs[0], value)
            graph.remove(node, safe=True)
