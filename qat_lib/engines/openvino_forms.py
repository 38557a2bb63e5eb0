"""Rewrite graphs into forms that OpenVINO computes correctly.

OpenVINO 2026.4 (CPU) computes some forms of INT8 graphs incorrectly, found by ``compare_layers``:

- Signed integers around a Concat, Squeeze or Unsqueeze: the low precision transformations treat
  the quantized tensors as real-valued, and round each value to a whole number. Unsigned integers
  with the zero point 128 have the same steps and are correct. With a Concat anywhere in the graph,
  also signed integers that a convolution reads behind a Transpose, MaxPool, Resize or the like.
  Kernels for AMX read both correctly, but a served model may run on a CPU without AMX. Products
  read signed integers correctly behind a Concat of tokens, and can't be compiled with a zero point.
- An INT8 convolution or product without a bias, read more than once, such as by the mean and the
  difference of a LayerNormalization, or by a quantizer and an Add: one read is without its scale.
  With a Clip at the limits of float32 in between, all are correct.
- An INT8 product with weights, multiplied by constants that differ along another axis than the last,
  such as those of a LayerScale on transposed tensors. A Clip in between, as above.
- An INT8 convolution, reshaped in front of a Clip and a quantizer: the scale of the first channel is
  taken for all. A Clip before the Reshape, as above.
- A maximum in front of a quantizer, and a mean without keepdims or of values with factors or summands
  by channel, such as the scales of INT8 weights: a kernel that reduces and also rescales or quantizes
  is often wrong. With keepdims and a Squeeze behind it, all are correct.
- A sum or product with constants by channel as the *first* input, in front of a quantizer: the
  plugin fuses both and takes the constant of the first channel for all. The inputs are exchanged.
- On CPUs with AMX, convolutions of few channels with windows such as 4 x 4 or 8 x 8, in INT8 and BF16
  (``_misread_windows``): SegFormer, PVT, convolutions of signals. Also INT8 convolutions of single
  elements in groups of more than 64 channels: ShuffleNet. A column of zeros is added.
- On CPUs without VNNI, INT8 weights with sums of two that exceed 16 bits
  (``qat_lib.engines.pair_sums``). The weights of such layers are stored in float32. Graphs planned
  for the CPU contain none.
- On CPUs without VNNI, INT8 convolutions with a window of one element and strides, such as the
  shortcuts of a ResNet: with several threads up to a quarter of the answers were wrong at random,
  with one thread none. A MaxPool with the same window and strides selects the elements instead.

A Q/DQ pair behind a Concat whose inputs have the scale of the pair changes no value, but OpenVINO
requantizes each input. The pair is left out.

Next to an Expand or a ConstantOfShape anywhere in the graph, OpenVINO takes the bias of the first
channel for all in an INT8 convolution in front of a quantizer: it reads the bias with a computed
shape, and folds that wrongly. A constant of this shape takes its place.

A normalization of a quantized tensor is computed on its integers, with the epsilon of the real
values: for values near epsilon it is nearly lost. A Minimum in between keeps the scale before it.

In any precision, a recurrent layer between two Transposes is wrong for batches of 2 and more: the
CPU plugin drops the Transposes and marks the layer as time-major, but ``export_model`` does not
write the mark. A Clamp at the limits of float32 preserves the Transposes.

The rewritten graph is equivalent; the reference is ONNX Runtime on the original graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qat_lib.engines.pair_sums import overflowing_nodes
from qat_lib.errors import ExportError
from qat_lib.graph.roles import onnx_operators
from qat_lib.options import Cpu, EnginePrecision

if TYPE_CHECKING:
    from qat_lib.onnx_view.graph import Node, OnnxGraph

_WEIGHTED = onnx_operators("weighted")
_CONVOLUTIONS = onnx_operators("convolution")
_CONCAT = "Concat"
_MISREAD = {_CONCAT, "Squeeze", "Unsqueeze"}
# Operators that the low precision transformations move a scale through.
_MOVERS = onnx_operators("range preserving") | {"AveragePool", "Relu"}
# Operators between a quantized tensor and a Concat or a convolution.
_THROUGH = _MOVERS | onnx_operators("activation") | {"Clip", "Identity", _CONCAT}
_REDUCTIONS = onnx_operators("reduction")
_ARITHMETIC = onnx_operators("arithmetic")
_COMMUTATIVE = onnx_operators("merge", "arithmetic")
_RESHAPES = onnx_operators("reshape")
_LOOPS = onnx_operators("loop")
_MIDDLE = 128
# Bytes in a row of AMX's tiles.
_TILE = 64
_LIMIT = 3.0e38
# Greatest epsilon of a normalization of integers, which have variances of hundreds.
_EPSILON = 0.2
# OpenVINO's recurrent operations, the translations of ONNX's LSTM, GRU and RNN.
_RECURRENT = {"LSTMSequence", "GRUSequence", "RNNSequence"}
# First operator set with the limits of a Clip as inputs.
_CLIP_OPSET = 11
# First operator set with the axes of a Squeeze as an input.
_SQUEEZE_OPSET = 13


@dataclass(frozen=True, kw_only=True)
class SoundForm:
    """A form of an ONNX graph that OpenVINO computes correctly.

    Attributes:
        data: the serialized model; None if the file needs no change.
        floats: names of the nodes with their INT8 weights stored in float32.
    """

    data: bytes | None = None
    floats: tuple[str, ...] = ()


def sound_form(path: Path, cpu: Cpu, precision: EnginePrecision = "fp32") -> SoundForm:
    """Return an ONNX file in a form that OpenVINO computes correctly.

    Args:
        path: the file.
        cpu: kind of CPU.
        precision: precision of the layers that are not in INT8.

    Raises:
        ExportError: the file can't be read.
    """
    import onnx

    from qat_lib.onnx_view.graph import OnnxGraph

    graph = OnnxGraph.load(path)
    shifted = list(dict.fromkeys(_misread_pairs(graph)))
    torn: list[str] = []
    if graph.opset >= _CLIP_OPSET:
        torn += [*_torn_tensors(graph), *_rescaled_rows(graph), *_reshaped(graph)]
    is_quantized = any(node.op == "QuantizeLinear" for node in graph.nodes)
    can_squeeze = graph.opset >= _SQUEEZE_OPSET
    reduced = list(_misread_reductions(graph)) if is_quantized and can_squeeze else []
    overflowing = list(overflowing_nodes(graph)) if cpu == "avx2" else []
    skipping = {node.name for node in _skipping(graph)} if cpu == "avx2" else set()
    is_bf16 = precision == "bf16"
    misread = dict(_misread_windows(graph, floats=is_bf16)) if cpu == "vnni" else {}
    repeated = {node.outputs[0] for node in _repeated(graph)}
    turned = set(_led_by_constants(graph)) if is_quantized else set()
    changes = (shifted, torn, reduced, overflowing, skipping, misread, repeated, turned)
    if not any(changes):
        return SoundForm()
    model: Any = onnx.load(str(path))  # with its weights, wherever they are
    _shift(model, {node.name for node in shifted}, graph)
    _store_float_weights(model, overflowing, graph)
    _clip(model, torn)
    _squeeze(model, dict(reduced))
    _select(model, skipping)
    _widen(model, misread)
    for node in model.graph.node:
        if turned.intersection(node.output):
            node.input[:] = node.input[::-1]
    # Last: the other changes find unnamed nodes by their position.
    _leave_out(model, repeated)
    return SoundForm(
        data=model.SerializeToString(), floats=tuple(node.name for node in overflowing)
    )


def make_sound(model: Any) -> None:
    """Change the operations of an OpenVINO model to forms that the CPU plugin computes correctly."""
    for operation in model.get_ordered_ops():
        if operation.get_type_name() in _RECURRENT:
            _keep_time_axis(operation)
        elif operation.get_type_name() == "Add":
            _fold_bias(operation)
        elif operation.get_type_name() == "MVN":
            _keep_epsilon(operation)


def _keep_time_axis(operation: Any) -> None:
    """Insert a Clamp without effect behind a recurrent operation.

    The plugin drops the Transposes of unidirectional operations only.
    """
    from openvino import opset8

    if operation.get_attributes()["direction"] == "bidirectional":
        return
    sequence = operation.output(0)
    # Before the Clamp exists: it must not become a reader of its own output.
    readers = sequence.get_target_inputs()
    name = f"{operation.get_friendly_name()}/clamp"
    clamp = opset8.clamp(sequence, -_LIMIT, _LIMIT, name=name)
    for reader in readers:
        reader.replace_source_output(clamp.output(0))


def _fold_bias(operation: Any) -> None:
    """Replace the reshaped bias of a convolution by a constant."""
    from openvino import opset8

    for operand in operation.inputs():
        reshape = operand.get_source_output().get_node()
        shape = reshape.get_output_partial_shape(0)
        if reshape.get_type_name() != "Reshape" or shape.is_dynamic:
            continue
        bias = reshape.input_value(0).get_node()
        if bias.get_type_name() == "Constant":
            values = bias.get_data().reshape(list(shape.to_shape()))
            folded = opset8.constant(values, name=f"{operation.get_friendly_name()}/bias")
            operand.replace_source_output(folded.output(0))


def _keep_epsilon(operation: Any) -> None:
    """Insert a Minimum without effect between a small scale and a normalization."""
    from openvino import opset8

    scaled = operation.input_value(0).get_node()
    if scaled.get_type_name() != "Multiply":
        return
    scale = scaled.input_value(1).get_node()
    if scale.get_type_name() != "Constant" or scale.get_data().dtype != np.float32:
        return
    if operation.get_attributes()["eps"] > _EPSILON * float(scale.get_data().min()) ** 2:
        kept = opset8.minimum(scaled.output(0), np.float32(_LIMIT))
        operation.input(0).replace_source_output(kept.output(0))


def _misread_pairs(graph: OnnxGraph) -> Iterator[Node]:
    """Yield the signed Q nodes around each Concat, Squeeze and Unsqueeze.

    In a graph with a Concat, also those of tensors that a convolution reads moved, pooled or cut.
    """
    misread = [
        node
        for node in graph.nodes
        # Others join the sizes of a shape.
        if node.op in _MISREAD and graph.dtype(node.outputs[0]) in ("", "float32", "float16")
        if not graph.is_constant(node.outputs[0])
    ]
    around = {node.name: (*_before(graph, node), *_behind(graph, node)) for node in misread}
    tokens = [around[node.name] for node in misread if _joins_tokens(graph, node)]
    kept = {found.name for pairs in tokens for found in pairs}
    for node in misread:
        for found in around[node.name]:
            if found.name not in kept and _is_signed(graph, found):
                yield found
    if not any(node.op == _CONCAT for node in misread):
        return
    for node in graph.nodes:
        if node.op in _CONVOLUTIONS:
            quantize, passed = _source(graph, node.input(0))
            if quantize is not None and passed & _MOVERS and _is_signed(graph, quantize):
                yield quantize


def _joins_tokens(graph: OnnxGraph, node: Node) -> bool:
    """Return whether products, but no convolutions, read the rows that a Concat joins."""
    shape = graph.shape(node.outputs[0])
    if node.op != _CONCAT or shape is None or node.attributes["axis"] in (-1, len(shape) - 1):
        return False
    pairs = [pair for each in _behind(graph, node) for pair in graph.consumers(each.outputs[0])]
    readers = {reader.op for pair in pairs for reader in graph.consumers(pair.outputs[0])}
    return "MatMul" in readers and readers.isdisjoint(_CONVOLUTIONS)


def _before(graph: OnnxGraph, node: Node) -> Iterator[Node]:
    for tensor in node.inputs:
        quantize, _ = _source(graph, tensor)
        if quantize is not None:
            yield quantize


def _source(graph: OnnxGraph, tensor: str) -> tuple[Node | None, set[str]]:
    """Return the Q node of a tensor or None, and the operators between the pair and the tensor."""
    passed = set()
    producer = graph.producer(tensor)
    while producer is not None and producer.op in _THROUGH and producer.op != _CONCAT:
        passed.add(producer.op)
        producer = graph.producer(producer.input(0))
    if producer is None or producer.op != "DequantizeLinear":
        return None, passed
    source = graph.producer(producer.input(0))
    is_pair = source is not None and source.op == "QuantizeLinear"
    return (source if is_pair else None), passed


def _behind(graph: OnnxGraph, node: Node) -> Iterator[Node]:
    for tensor in node.outputs:
        for reader in graph.consumers(tensor):
            if reader.op == "QuantizeLinear":
                yield reader
            elif reader.op in _THROUGH:
                yield from _behind(graph, reader)


def _repeated(graph: OnnxGraph) -> Iterator[Node]:
    """Yield each Q behind a Concat of tensors that have the scale of the Q already."""
    if any(node.op in _LOOPS for node in graph.nodes):
        return  # their bodies may read a tensor that would disappear
    for node in graph.nodes:
        if node.op != "QuantizeLinear":
            continue
        joint = graph.producer(node.input(0))
        grid = _grid(graph, node)
        if joint is None or joint.op != _CONCAT or grid is None:
            continue
        pairs = graph.consumers(node.outputs[0])
        written = {tensor for pair in pairs for tensor in pair.outputs}
        if not graph.output_names.isdisjoint({*written, node.outputs[0]}):
            continue
        # A DQ may have another scale than the Q in front of it.
        is_plain = all(p.op == "DequantizeLinear" and _grid(graph, p) == grid for p in pairs)
        if is_plain and all(_grid_of(graph, tensor) == grid for tensor in joint.inputs):
            yield node


def _grid_of(graph: OnnxGraph, tensor: str) -> tuple[Any, ...] | None:
    """Return scale and zero point of the DQ that writes a tensor, possibly moved; else None."""
    node = graph.producer(tensor)
    while node is not None and graph.moves_values(node):
        node = graph.producer(node.input(0))
    return _grid(graph, node) if node is not None and node.op == "DequantizeLinear" else None


def _grid(graph: OnnxGraph, node: Node) -> tuple[Any, ...] | None:
    """Return scale, zero point and integer type of a per-tensor Q or DQ; else None."""
    scale = graph.value(node.input(1))
    zero = graph.value(node.input(2)) if node.input(2) else None
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return None
    return float(scale.reshape(())), int(zero.reshape(())), str(zero.dtype)


def _leave_out(model: Any, integers: set[str]) -> None:
    """Connect the readers of Q/DQ pairs with the inputs of the pairs, in place."""
    sources = {
        node.output[0]: node.input[0] for node in model.graph.node if node.output[0] in integers
    }
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in integers:
            sources[node.output[0]] = sources[node.input[0]]
    for node in model.graph.node:
        for index, tensor in enumerate(node.input):
            while tensor in sources:  # a Concat can read another one
                tensor = node.input[index] = sources[tensor]
    _keep(model, [node for node in model.graph.node if node.output[0] not in sources])


def _keep(model: Any, nodes: Sequence[Any]) -> None:
    """Replace the nodes of a model, in place."""
    import onnx

    # Copies: deleting the repeated field invalidates its messages.
    copied = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copied)


def _is_signed(graph: OnnxGraph, quantize: Node) -> bool:
    """Return whether a Q node writes INT8 with zero point 0, read by DQ nodes only."""
    zero = graph.value(quantize.input(2)) if quantize.input(2) else None
    if zero is None or zero.dtype != np.int8 or np.any(zero):
        return False
    # An integer reader would see the shifted values.
    readers = graph.consumers(quantize.outputs[0])
    return all(reader.op == "DequantizeLinear" for reader in readers)


def _torn_tensors(graph: OnnxGraph) -> Iterator[str]:
    """Yield outputs of INT8 kernels without a bias that are read more than once."""
    for node in graph.nodes:
        is_float = bool(node.outputs) and graph.dtype(node.outputs[0]) == "float32"
        if node.op not in _WEIGHTED or not is_float or _has_bias(graph, node):
            continue
        source = graph.producer(node.input(0))
        if source is None or source.op != "DequantizeLinear":
            continue
        output = node.outputs[0]
        # A square reads its operand twice; the nodes of a subgraph do not name it as an input.
        reads = [
            reader.op
            for reader in graph.consumers(output)
            for _ in range(max(reader.inputs.count(output), 1))
        ]
        if output in graph.output_names:
            reads.append("output")
        if len(reads) > 1 and set(reads) != {"QuantizeLinear"}:
            yield output


def _rescaled_rows(graph: OnnxGraph) -> Iterator[str]:
    """Yield outputs of INT8 products with weights, multiplied by a constant for each row."""
    for node in graph.nodes:
        if node.op not in ("Mul", "Div") or graph.dtype(node.outputs[0]) != "float32":
            continue
        for tensor, other in (node.inputs, node.inputs[::-1]):
            factor = graph.weights(other)
            if factor is None or math.prod(factor.shape[:-1]) == 1:
                continue
            product = graph.producer(tensor)
            if product is not None and product.op == "Add":  # of the bias
                summands = [each for each in product.inputs if not graph.is_constant(each)]
                product = graph.producer(summands[0]) if len(summands) == 1 else None
            if product is None or product.op != "MatMul":
                continue
            weights = graph.producer(product.input(1))
            if weights is not None and weights.op == "DequantizeLinear":
                yield tensor


def _reshaped(graph: OnnxGraph) -> Iterator[str]:
    """Yield outputs of INT8 convolutions in front of a Reshape, then a Clip and a quantizer."""
    for clip in graph.nodes:
        readers = graph.consumers(clip.outputs[0]) if clip.op == "Clip" else ()
        if not any(reader.op == "QuantizeLinear" for reader in readers):
            continue
        found = ""
        node = graph.producer(clip.input(0))
        while node is not None and node.op in _MOVERS | _ARITHMETIC:
            variable = [each for each in node.inputs if not graph.is_constant(each)]
            if not variable or (len(variable) > 1 and node.op not in _RESHAPES):
                break
            if node.op in _RESHAPES:
                found = variable[0]
            node = graph.producer(variable[0])
        if found and node is not None and node.op in _CONVOLUTIONS:
            weights = graph.producer(node.input(1))
            if weights is not None and weights.op == "DequantizeLinear":
                yield found


def _misread_reductions(graph: OnnxGraph) -> Iterator[tuple[str, list[int]]]:
    """Yield output and axes of each reduction that a factor or a quantizer may be fused with."""
    for node in graph.nodes:
        # Others compute shapes, or are in FP16.
        if node.op not in _REDUCTIONS or graph.dtype(node.outputs[0]) != "float32":
            continue
        is_extreme = node.op in ("ReduceMax", "ReduceMin")
        is_kept = node.attributes.get("keepdims", 1)
        if is_kept and not (is_extreme or _is_rescaled(graph, node.input(0))):
            continue
        axes = node.attributes.get("axes")
        if axes is None and node.input(1):
            axes = graph.value(node.input(1))
        if axes is not None and len(axes):
            yield node.outputs[0], [int(axis) for axis in axes]


def _led_by_constants(graph: OnnxGraph) -> Iterator[str]:
    """Yield outputs of sums and products with several constants as the first input."""
    for node in graph.nodes:
        if node.op in _COMMUTATIVE and not graph.is_constant(node.input(1)):
            constant = graph.weights(node.input(0))
            if constant is not None and constant.size > 1:
                yield node.outputs[0]


def _is_rescaled(graph: OnnxGraph, tensor: str) -> bool:
    """Return whether a tensor has factors or summands by channel that OpenVINO moves behind it."""
    node = graph.producer(tensor)
    while node is not None and node.op not in _WEIGHTED:
        variable = [each for each in node.inputs if not graph.is_constant(each)]
        if node.op in _ARITHMETIC and len(variable) == 1:
            constants = (graph.weights(each) for each in node.inputs if each not in variable)
            if any(constant is not None and constant.size > 1 for constant in constants):
                return True
        elif node.op != "Transpose":
            return False
        node = graph.producer(variable[0])
    return node is not None


def _convolutions(
    graph: OnnxGraph, *, floats: bool = False
) -> Iterator[tuple[Node, np.ndarray[Any, Any]]]:
    """Yield the convolutions with quantized weights and their integers, and with ``floats`` all."""
    for node in graph.nodes:
        if node.op != "Conv":
            continue
        source = node.input(1)
        producer = graph.producer(source)
        if producer is not None and producer.op == "DequantizeLinear":
            source = producer.input(0)
        elif not floats:
            continue
        weights = graph.weights(source)
        if weights is not None:
            yield node, weights


def _skipping(graph: OnnxGraph) -> Iterator[Node]:
    """Yield the convolutions of a quantized tensor that read single elements at a distance."""
    for node, integers in _convolutions(graph):
        is_apart = max(node.attributes.get("strides", [1])) > 1
        if is_apart and integers[0, 0].size == 1 and not any(node.attributes.get("pads", ())):
            yield node


def _misread_windows(
    graph: OnnxGraph, *, floats: bool
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield weights that kernels for AMX misread, as tensors and the stored values.

    Their rows of channels and window fill whole tiles, two or more, but the channels alone fill
    none. Found by trying windows of 2 to 32 elements with 3 to 192 channels. See also
    ``_has_misread_groups``.

    Args:
        graph: the graph.
        floats: whether its floating-point weights are computed in BF16.
    """
    for node, weights in _convolutions(graph, floats=floats):
        channels, width = weights.shape[1], weights.shape[-1]
        tile = _TILE if weights.dtype == np.int8 else _TILE // 2
        is_misread = channels < tile < channels * width and channels * width % tile == 0
        if not is_misread and not _has_misread_groups(node, weights):
            continue
        is_explicit = node.attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
        # Another reader would see the added column.
        is_alone = len(graph.consumers(node.input(1))) == 1
        if is_explicit and is_alone and weights.dtype in (np.int8, np.float32):
            yield node.input(1), weights


def _has_misread_groups(node: Node, weights: np.ndarray[Any, Any]) -> bool:
    """Return whether kernels for AMX misread the groups of an INT8 convolution of single elements.

    The channels of a group fill one tile and a part of another. Found by trying 8 to 320 channels.
    """
    channels = weights.shape[1]
    is_grouped = (
        node.attributes.get("group", 1) > 1 and max(node.attributes.get("strides", [1])) == 1
    )
    if not is_grouped or weights[0, 0].size > 1 or weights.dtype != np.int8:
        return False
    return bool(channels > _TILE and channels % _TILE and channels % 4 == 0)


def _has_bias(graph: OnnxGraph, node: Node) -> bool:
    """Return whether a weighted node has a bias other than zeros."""
    if not node.input(2):
        return False
    bias = graph.value(node.input(2))
    return bias is None or bool(np.any(bias))


def _shift(model: Any, names: set[str], graph: OnnxGraph) -> None:
    """Change Q/DQ pairs to unsigned integers with the zero point 128, in place."""
    import onnx

    written = set()
    for index, node in enumerate(model.graph.node):
        if (node.name or f"{node.op_type}_{index}") not in names:
            continue
        zero = f"{node.output[0]}/middle"
        values = np.full_like(graph.value(node.input[2]), _MIDDLE, np.uint8)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, zero))
        node.input[2] = zero
        written.add((node.output[0], zero))
    zeros = dict(written)
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in zeros:
            zero = zeros[node.input[0]]
            node.input[:] = [*node.input[:2], zero]
    # Recorded types of the shifted tensors would still be INT8.
    kept = [value for value in model.graph.value_info if value.name not in zeros]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)


def _store_float_weights(model: Any, nodes: Sequence[Node], graph: OnnxGraph) -> None:
    """Replace the INT8 weights of nodes by their dequantized float32 values, in place."""
    import onnx

    values: dict[str, np.ndarray[Any, Any]] = {}
    for node in nodes:
        dequantize = graph.producer(node.input(1))
        if dequantize is not None:
            values[node.input(1)] = _dequantized(graph, dequantize)
    _keep(model, [node for node in model.graph.node if not values.keys() & set(node.output)])
    for name, array in values.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))


def _dequantized(graph: OnnxGraph, node: Node) -> np.ndarray[Any, Any]:
    """Return the output of a DequantizeLinear node of constants, in float32."""
    integers, scale = graph.weights(node.input(0)), graph.weights(node.input(1))
    zero = graph.weights(node.input(2)) if node.input(2) else None
    if integers is None or scale is None:
        raise ExportError(f"Expected {node.name!r} to read constants. It reads {node.inputs}.")
    if scale.ndim == 1 and scale.size > 1:
        shape = [1] * integers.ndim
        shape[node.attributes.get("axis", 1)] = scale.size
        scale = scale.reshape(shape)
        zero = None if zero is None else zero.reshape(shape)
    offset = 0 if zero is None else zero.astype(np.int32)
    return np.asarray((integers.astype(np.int32) - offset) * scale, np.float32)


def _clip(model: Any, tensors: list[str]) -> None:
    """Insert a Clip without effect behind tensors, in place."""
    import onnx

    if not tensors:
        return
    limits = [f"{tensors[0]}/least", f"{tensors[0]}/most"]
    for name, value in zip(limits, (-_LIMIT, _LIMIT), strict=True):
        array = np.asarray(value, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        if node.output and node.output[0] in tensors:
            tensor = node.output[0]
            node.output[0] = f"{tensor}/open"
            inputs = [node.output[0], *limits]
            nodes.append(onnx.helper.make_node("Clip", inputs, [tensor], name=f"{tensor}/clip"))
    _keep(model, nodes)


def _squeeze(model: Any, reduced: Mapping[str, Sequence[int]]) -> None:
    """Set keepdims of reducing nodes and insert a Squeeze behind them, in place.

    With keepdims already set, a Clip and an Unsqueeze follow: the plugin joins the two otherwise.
    """
    import onnx

    if not reduced:
        return
    nodes, opened = [], []
    for node in model.graph.node:
        nodes.append(node)
        tensor = node.output[0] if node.output else ""
        if tensor not in reduced:
            continue
        keepdims = [each for each in node.attribute if each.name == "keepdims"]
        others = [each for each in node.attribute if each.name != "keepdims"]
        del node.attribute[:]
        node.attribute.extend([*others, onnx.helper.make_attribute("keepdims", 1)])
        node.output[0] = f"{tensor}/kept"
        axes = onnx.numpy_helper.from_array(np.array(reduced[tensor], np.int64), f"{tensor}/axes")
        model.graph.initializer.append(axes)
        is_kept = not keepdims or keepdims[0].i
        squeezed = f"{tensor}/squeezed" if is_kept else tensor
        inputs = [node.output[0], axes.name]
        nodes.append(onnx.helper.make_node("Squeeze", inputs, [squeezed], name=f"{tensor}/squeeze"))
        if is_kept:
            opened.append(squeezed)
            inputs = [squeezed, axes.name]
            nodes.append(
                onnx.helper.make_node("Unsqueeze", inputs, [tensor], name=f"{tensor}/unsqueeze")
            )
    _keep(model, nodes)
    _clip(model, opened)


def _widen(model: Any, misread: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Add a column of zeros to the windows of convolutions, and a padding for it, in place."""
    import onnx

    for tensor, weights in misread.items():
        wide = np.pad(weights, [*[(0, 0)] * (weights.ndim - 1), (0, 1)])
        model.graph.initializer.append(onnx.numpy_helper.from_array(wide, f"{tensor}/wide"))
    dequantized = set()
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.output[0] in misread:
            dequantized.add(node.output[0])
            node.input[0] = f"{node.output[0]}/wide"
        elif node.op_type == "Conv" and node.input[1] in misread:
            rank = misread[node.input[1]].ndim - 2
            given = {each.name: list(each.ints) for each in node.attribute}
            pads = given.get("pads", [0] * (2 * rank))
            pads[-1] += given.get("dilations", [1])[-1]
            left = [each for each in node.attribute if each.name not in ("pads", "kernel_shape")]
            del node.attribute[:]
            node.attribute.extend([*left, onnx.helper.make_attribute("pads", pads)])
            if node.input[1] not in dequantized:
                node.input[1] = f"{node.input[1]}/wide"


def _select(model: Any, names: set[str]) -> None:
    """Move the strides of convolutions into a MaxPool in front of them, in place."""
    import onnx

    if not names:
        return
    nodes = []
    for node in model.graph.node:
        if node.name in names:
            (strides,) = [each for each in node.attribute if each.name == "strides"]
            steps = list(strides.ints)
            selected = f"{node.output[0]}/selected"
            nodes.append(
                onnx.helper.make_node(
                    "MaxPool",
                    [node.input[0]],
                    [selected],
                    name=selected,
                    kernel_shape=[1] * len(steps),
                    strides=steps,
                )
            )
            node.input[0] = selected
            strides.ints[:] = [1] * len(steps)
        nodes.append(node)
    _keep(model, nodes)
