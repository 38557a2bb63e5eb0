"""Convert a captured module to an onnx-ir model with the module and quantizer of each node."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import onnxscript
import torch
from onnx_ir.passes.common import NameFixPass
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from qat_lib.errors import ExportError
from qat_lib.export.conversion import change_opset, insert_pairs
from qat_lib.export.options import NEWEST_OPSET, OLDEST_OPSET
from qat_lib.export.passes.fold_constants import fold_constants
from qat_lib.export.passes.static_shapes import fix_reshape_targets, infer_shapes
from qat_lib.support.foreign_errors import describe_error
from qat_lib.torch.border import name_border
from qat_lib.torch.capture import Example, capture, silent
from qat_lib.torch.older_opset import lower_opset
from qat_lib.torch.origins import Scopes, attribute_nodes
from qat_lib.torch.written_forms import simplify

WRITTEN_OPSET = 18
"""Operator set of PyTorch's exporter. ``lower_opset`` writes older ones, ONNX's version converter
newer ones, on the graph without weights."""

LARGEST_KEPT = 1024
"""Maximum size of constants for the version converter, enough for arguments of operators."""

DOMAIN, MARKER, NAME = "qatline", "Quantizer", "name"


def convert(
    module: nn.Module, example: Example, *, opset: int, batch: int | None = None
) -> ir.Model:
    """Convert a module; Q/DQ pairs have no range yet.

    Args:
        module: module with float32 weights, quantized or not.
        example: its arguments.
        opset: ONNX operator set, ``OLDEST_OPSET`` to ``NEWEST_OPSET``.
        batch: fixed batch size; None (default) leaves it open.

    Returns:
        A model in the form of ``qat_lib.keras.export.convert.convert``, with module paths instead
        of Keras layers.

    Raises:
        ExportError: the operator set is out of range or lacks an operator of the module, or PyTorch
            can't capture or convert the module.
    """
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise ExportError(
            f"Expected an opset from {OLDEST_OPSET} to {NEWEST_OPSET}. Received: {opset}."
        )
    program = capture(module, example, batch=batch)
    model = _run_exporter(program)
    name_border(model, program, batch)
    # Before the metadata are cleared, and before simplification removes nodes.
    scopes = Scopes.of(model)
    _forget_sources(model)
    for _ in range(2):  # folding makes more shapes known
        infer_shapes(model)
        simplify(model)
        model = fix_reshape_targets(fold_constants(model))
    # Before the version conversion, so that it processes standard operators only.
    markers = _take_markers(model)
    model = _in_opset(model, opset)
    attribute_nodes(model, scopes, markers)
    insert_pairs(model, markers)
    return model


def _run_exporter(program: Any) -> ir.Model:
    """Run PyTorch's exporter without its optimizer, which the lowering passes replace."""
    translation = {torch.ops.qatline.quantizer.default: _marker_operator()}
    try:
        # Fused kernels of attention with a mask return other strides than the exporter's
        # decomposition, in which a recorded view of the output is then impossible.
        with silent(), sdpa_kernel(SDPBackend.MATH):
            exported = torch.onnx.export(
                program,
                (),
                dynamo=True,
                optimize=False,
                verbose=False,
                opset_version=WRITTEN_OPSET,
                custom_translation_table=translation,
            )
    except Exception as error:  # the exporter raises errors of many types
        raise ExportError(
            f"torch.onnx could not convert the module: {describe_error(_cause(error))}. "
            "Replace the operation that it names."
        ) from error
    # A constant may have the name of an operation, such as self.mean that of x.mean().
    model: ir.Model = NameFixPass()(exported.model).model
    foreign = {node.domain for node in model.graph} - {"", "ai.onnx", DOMAIN}
    if foreign:
        raise ExportError(
            "Expected standard ONNX operators. torch.onnx gave some of the domains "
            f"{', '.join(sorted(foreign))}. Replace the operations that they stand for."
        )
    return model


def _forget_sources(model: ir.Model) -> None:
    """Drop PyTorch's metadata, such as source lines of nodes."""
    graph = model.graph
    # The exporter stores tracebacks and file paths, which do not belong in a delivered file.
    made = (output for node in graph for output in node.outputs)
    for part in (model, graph, *graph, *graph.inputs, *graph.initializers.values(), *made):
        part.metadata_props.clear()
        part.doc_string = None


def _cause(error: BaseException) -> BaseException:
    """Return the root cause of an error, since PyTorch's message is a page about bug reports."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _marker_operator() -> Any:
    """Return a translation of markers to nodes with quantizer names."""
    schema = onnx.defs.OpSchema
    marker = onnxscript.values.Op(
        onnxscript.values.Opset(DOMAIN, 1),
        MARKER,
        schema(
            MARKER,
            DOMAIN,
            1,
            inputs=[schema.FormalParameter("x", "T")],
            outputs=[schema.FormalParameter("y", "T")],
            type_constraints=[("T", ["tensor(float)"], "")],
            attributes=[schema.Attribute(NAME, schema.AttrType.STRING, "")],
        ),
    )

    def translate(x: Any, name: str) -> Any:
        return marker(x, name=name)

    return translate


def _take_markers(model: ir.Model) -> dict[str, str]:
    """Replace markers by Identities; return tensor -> quantizer name."""
    markers: dict[str, str] = {}
    for node in model.graph:
        if node.domain == DOMAIN:
            markers[str(node.outputs[0].name)] = node.attributes[NAME].as_string()
            node.domain, node.op_type = "", "Identity"
            node.attributes.clear()
    model.graph.opset_imports.pop(DOMAIN, None)
    return markers


def _in_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model in another operator set."""
    identifier = onnx.helper.make_opsetid("", opset)
    model.ir_version = onnx.helper.find_min_ir_version_for([identifier])
    if opset < WRITTEN_OPSET:
        lower_opset(model, opset)
    return model if opset <= WRITTEN_OPSET else _raise_opset(model, opset)


def _raise_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model in a newer operator set, with the weights kept out of the converter."""
    weights = {}
    for name, value in list(model.graph.initializers.items()):
        if value.const_value is not None and value.const_value.size > LARGEST_KEPT:
            weights[name] = value.const_value
            value.const_value = None
            del model.graph.initializers[name]
            # A temporary input: with its weights, a model may exceed protobuf's limit of 2 GB.
            model.graph.inputs.append(value)
    proto = change_opset(ir.to_proto(model), opset, WRITTEN_OPSET)
    result = ir.serde.deserialize_model(proto)
    for value in list(result.graph.inputs):
        if value.name in weights:
            result.graph.inputs.remove(value)
            value.const_value = weights[value.name]
            result.graph.register_initializer(value)
    return result
