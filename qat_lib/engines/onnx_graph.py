"""Summary of an ONNX file for an engine build: inputs, outputs, (weighted) nodes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qat_lib.engines.spec import BuildSpec, ShapeProfile
from qat_lib.engines.values import TensorInfo, names_of
from qat_lib.errors import ConfigError, EngineBuildError, ExportError
from qat_lib.graph.roles import PAIR, onnx_operators
from qat_lib.onnx_view.identity import Identities
from qat_lib.onnx_view.metadata import read_metadata
from qat_lib.options import WeightForm
from qat_lib.support.mappings import map_values

if TYPE_CHECKING:
    from qat_lib.onnx_view.graph import OnnxGraph

# Operators with their weights as the second input.
_WEIGHTED = onnx_operators("weighted") | onnx_operators("integer weighted")
_THROUGH = PAIR | onnx_operators("layout") | {"Cast", "Identity"}


@dataclass(frozen=True, kw_only=True)
class GraphSummary:
    """Summary of one ONNX file.

    Args:
        inputs: graph inputs without initializers; None is a dynamic dimension.
        outputs: graph outputs.
        nodes: node name by each possible name in a backend: the node's name, and its outputs'.
        weighted: names of the nodes with constant weights, as in ``order``.
        order: name and operator of each node, in graph order.
        identities: Keras layers and quantizers of the nodes.
        metadata: metadata of the exporter, with keys without their ``qatline.`` prefix.
        weights: form of quantized weights: ``int8`` (INT8 + DQ), ``qdq`` (FP32 + Q + DQ), or
            None without Q/DQ.
        half: whether parts of the graph are in float16 or bfloat16.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    nodes: Mapping[str, str]
    weighted: tuple[str, ...]
    order: tuple[tuple[str, str], ...] = ()
    identities: Identities = field(default_factory=Identities)
    metadata: Mapping[str, str] = field(default_factory=dict)
    weights: WeightForm | None = None
    half: bool = False

    def recorded(self, kind: type, key: str) -> Any:
        """Return an entry of the metadata in JSON; None if it is missing or of another type."""
        try:
            value = json.loads(self.metadata.get(key, "null"))
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, kind) else None


def read_summary(path: Path) -> GraphSummary:
    """Read the summary of ``path``; weights in external files are not read.

    Raises:
        EngineBuildError: the file is missing or not an ONNX model, see
            ``qat_lib.onnx_view.loading.load_onnx``.
    """
    return summarize_graph(path, read_model(path))


def read_model(path: Path) -> Any:
    """Return the ModelProto of ``path``; see ``read_summary``."""
    from qat_lib.onnx_view.loading import load_onnx

    with _translated():
        return load_onnx(path)


def check_file(path: Path) -> None:
    """Check the tensor sizes of ``path`` without a build spec; see ``check_buildable``."""
    from qat_lib.onnx_view.bounds import check_bounds

    with _translated():
        check_bounds(path, read_model(path))


def check_buildable(path: Path, model: Any, spec: BuildSpec) -> None:
    """Check tensor sizes and scales of ``model`` before a build.

    Raises:
        EngineBuildError: a tensor is too large for engines, or a scale is zero, negative,
            subnormal or not finite.
    """
    from qat_lib.onnx_view.bounds import check_bounds
    from qat_lib.onnx_view.graph import OnnxGraph
    from qat_lib.onnx_view.scales import require_usable_scales

    with _translated():
        check_bounds(path, model, map_values(attrgetter("maximum"), spec.shapes))
        require_usable_scales(path, OnnxGraph(model, base_dir=path.resolve().parent))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ExportError as error:
        raise EngineBuildError(str(error)) from error


def summarize_graph(path: Path, model: Any) -> GraphSummary:
    """Return the summary of an opened model.

    Raises:
        EngineBuildError: the nodes do not form a graph, an output is missing or untyped, or the
            record of the nodes' identities is damaged.
    """
    import onnx

    from qat_lib.onnx_view.graph import OnnxGraph

    with _translated():
        view = OnnxGraph(model)
    graph = model.graph
    if not graph.node or not graph.output:
        raise EngineBuildError(
            f"{path} holds no ONNX graph with nodes and outputs. Export the model again."
        )
    # Files of IR version 3 list their initializers as inputs, too.
    constants = {tensor.name for tensor in graph.initializer}
    inputs = tuple(
        _tensor(path, value, view) for value in graph.input if value.name not in constants
    )
    outputs = tuple(_tensor(path, value, view) for value in graph.output)
    order, names = _named_nodes(graph)
    halves = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    return GraphSummary(
        inputs=inputs,
        outputs=outputs,
        nodes=names,
        weighted=tuple(_weighted(view)),
        order=order,
        identities=view.identities,
        metadata=read_metadata(model),
        weights=_weight_form(graph, constants),
        half=any(tensor.data_type in halves for tensor in graph.initializer),
    )


def _named_nodes(graph: Any) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
    """Return (name, operator) of each node, and node names by their name and output names."""
    order: list[tuple[str, str]] = []
    by_output: dict[str, str] = {}
    for index, node in enumerate(graph.node):
        name = node.name or f"{node.op_type}_{index}"
        order.append((name, node.op_type))
        for output in filter(None, node.output):
            by_output.setdefault(output, name)
    # A node's own name takes precedence over an output name of another node.
    own = dict(order)
    return tuple(order), by_output | dict(zip(own, own, strict=True))


def _weight_form(graph: Any, constants: Collection[str]) -> WeightForm | None:
    """Return the storage form of quantized weights; None without Q/DQ."""
    form: WeightForm | None = None
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input and node.input[0] in constants:
            # One INT8 weight decides, even among weights in the other form.
            return "int8"
        if node.op_type == "QuantizeLinear":
            form = "qdq"
    return form


def resolve(spec: BuildSpec, graph: GraphSummary) -> BuildSpec:
    """Return ``spec`` with a profile for every input of ``graph``.

    Raises:
        ConfigError: a profile has an unknown input, or does not fit the input's fixed dimensions,
            or a dynamic dimension other than the batch has no profile.
    """
    known = names_of(graph.inputs)
    unknown = sorted(set(spec.shapes) - set(known))
    if unknown:
        raise ConfigError(
            f"shapes names {unknown}, which are no inputs. The model's inputs: {sorted(known)}."
        )
    shapes = {}
    for info in graph.inputs:
        profile = spec.shapes.get(info.name) or _default_profile(info, spec.max_batch_size)
        if not _fits(info, profile):
            raise ConfigError(
                f"The profile {profile} does not fit the model's input {info}: fixed dimensions "
                "must match."
            )
        shapes[info.name] = profile
    return replace(spec, shapes=shapes)


def bounded(infos: tuple[TensorInfo, ...], spec: BuildSpec) -> tuple[TensorInfo, ...]:
    """Return ``infos`` with the dimensions fixed by the profiles; others remain None."""
    return tuple(replace(info, shape=spec.shapes[info.name].bounded) for info in infos)


def _default_profile(info: TensorInfo, max_batch_size: int) -> ShapeProfile:
    if None in info.shape[1:]:
        sample = "x".join(str(size or 224) for size in info.shape[1:])
        raise ConfigError(
            f"Input {info} has dynamic dimensions besides the batch: give shapes for it, "
            f"such as {info.name}:1x{sample},8x{sample},32x{sample}."
        )
    rest: Any = info.shape[1:]
    first = info.shape[0] if info.shape else None
    if not info.shape:
        return ShapeProfile.fixed(())
    if first is not None:
        return ShapeProfile.fixed((first, *rest))
    return ShapeProfile(
        minimum=(1, *rest), optimum=(max_batch_size, *rest), maximum=(max_batch_size, *rest)
    )


def _fits(info: TensorInfo, profile: ShapeProfile) -> bool:
    if len(info.shape) != len(profile.minimum):
        return False
    for size, low, high in zip(info.shape, profile.minimum, profile.maximum, strict=True):
        if size is not None and not low == size == high:
            return False
    return True


def _tensor(path: Path, value: Any, view: OnnxGraph) -> TensorInfo:
    import onnx

    shape = tuple(
        dimension.dim_value if dimension.HasField("dim_value") and dimension.dim_value > 0 else None
        for dimension in value.type.tensor_type.shape.dim
    )
    element = value.type.tensor_type.elem_type
    dtype = view.dtype(value.name)
    if element:
        try:
            dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element)).name
        except KeyError:
            dtype = ""
    if not dtype:
        raise EngineBuildError(
            f"Expected every input and output of {path} to have an element type. {value.name!r} "
            f"has none that is known (number {element}). Export the model again."
        )
    return TensorInfo(name=value.name, shape=shape, dtype=dtype)


def _weighted(view: OnnxGraph) -> list[str]:
    """Return the nodes with a constant weight, possibly behind Q/DQ pairs and reshapes."""

    def constant(name: str) -> bool:
        node = view.producer(name)
        while node is not None and node.op in _THROUGH:
            name = node.input(0)
            node = view.producer(name)
        return view.is_constant(name) and (node is None or node.op == "Constant")

    found = []
    for node in view.nodes:
        if node.op in _WEIGHTED and (
            constant(node.input(1)) or (node.op == "MatMul" and constant(node.input(0)))
        ):
            found.append(node.name)
    return found
