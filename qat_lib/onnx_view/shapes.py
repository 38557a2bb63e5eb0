"""Shapes and element types of tensors, inferred by ONNX without weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx

from qat_lib.onnx_view.inference import infer, infer_in_child
from qat_lib.onnx_view.protos import message_names
from qat_lib.onnx_view.shape_vectors import shape_vectors_stay_small

Dim: TypeAlias = "int | str | None"

#: Larger tensors are passed to the inference by shape only; shape arithmetic needs small ones.
_KEEP_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class TensorType:
    """Shape (None for unknown rank) and element type of a tensor."""

    shape: tuple[Dim, ...] | None
    dtype: str


def fixed_sizes(shape: Iterable[object] | None) -> list[int]:
    """Return the numeric dimensions of a shape; none for an unknown shape."""
    return [dim for dim in shape or () if isinstance(dim, int)]


def sizes_differ(first: Iterable[object], second: Iterable[object]) -> bool:
    """Return whether two shapes differ in a dimension known in both."""
    for size, other in zip(first, second, strict=False):
        if isinstance(size, int) and isinstance(other, int) and size != other:
            return True
    return False


def infer_types(model: onnx.ModelProto) -> Mapping[str, TensorType]:
    """Return the known types of the tensors in ``model``'s main graph.

    If the inference fails, only the types declared in the file are returned.
    """
    return types_of(model, infer_graph(model))


def infer_graph(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None = None
) -> onnx.GraphProto:
    """Return the main graph with inferred types, also in its subgraphs.

    Args:
        model: the model; large weights are left out of the result.
        shapes: replacements for the declared shapes of graph inputs. Default None: as declared.
    """
    skeleton = _skeleton(model)
    for value in skeleton.graph.input:
        if shapes is not None and value.name in shapes:
            element = value.type.tensor_type.elem_type
            value.CopyFrom(
                onnx.helper.make_tensor_value_info(value.name, element, shapes[value.name])
            )
    if shape_vectors_stay_small(model.graph):
        return infer(skeleton, follow_values=True).graph
    # Without propagation, inference needs little memory, but shapes behind shape arithmetic are
    # unknown.
    return (infer_in_child(skeleton) or infer(skeleton, follow_values=False)).graph


def types_of(model: onnx.ModelProto, graph: onnx.GraphProto) -> dict[str, TensorType]:
    """Return ``graph``'s declared types and those of ``model``'s constants."""
    found = dict(declared_types(graph))
    for tensor in model.graph.initializer:
        found[tensor.name] = _of_tensor(tensor)
    for node in model.graph.node:
        if _holds_tensor(node):
            found[node.output[0]] = _of_tensor(node.attribute[0].t)
    return found


def dtype_name(data_type: int) -> str:
    """Return the NumPy-like name of an ONNX element type; empty if unknown."""
    try:
        name: str = onnx.TensorProto.DataType.Name(data_type)
    except ValueError:
        return ""
    return {"FLOAT": "float32", "DOUBLE": "float64", "UNDEFINED": ""}.get(name, name.lower())


def _skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy the model without weights: large initializers become inputs."""
    # Before IR version 4, every initializer has to be an input, too.
    skeleton = onnx.ModelProto(ir_version=max(model.ir_version, 8))
    skeleton.opset_import.extend(model.opset_import)
    graph = skeleton.graph
    graph.name = model.graph.name or "graph"
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    declared = set(message_names(graph.input))
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.ByteSize() <= _KEEP_BYTES:
            # Protobuf copies messages, so the skeleton can be changed without affecting the model.
            graph.initializer.append(tensor)
        elif tensor.name not in declared:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    for node in model.graph.node:
        if node.ByteSize() > _KEEP_BYTES and _holds_tensor(node):
            value = node.attribute[0].t
            graph.input.append(
                onnx.helper.make_tensor_value_info(
                    node.output[0], value.data_type, list(value.dims)
                )
            )
        else:
            graph.node.append(node)
    return skeleton


def _holds_tensor(node: onnx.NodeProto) -> bool:
    return bool(
        node.op_type == "Constant"
        and node.output
        and len(node.attribute) == 1
        and node.attribute[0].HasField("t")
    )


def declared_types(graph: onnx.GraphProto) -> Iterator[tuple[str, TensorType]]:
    """Yield the declared types of a graph's inputs, inner tensors and outputs."""
    values: Iterable[onnx.ValueInfoProto] = (*graph.input, *graph.value_info, *graph.output)
    for value in values:
        if not value.type.HasField("tensor_type"):
            continue
        tensor = value.type.tensor_type
        shape: tuple[Dim, ...] | None = None
        if tensor.HasField("shape"):
            shape = tuple(map(_dim, tensor.shape.dim))
        yield value.name, TensorType(shape=shape, dtype=dtype_name(tensor.elem_type))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) or None if kind == "dim_param" else None


def _of_tensor(tensor: onnx.TensorProto) -> TensorType:
    return TensorType(shape=tuple(tensor.dims), dtype=dtype_name(tensor.data_type))
