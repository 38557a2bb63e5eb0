"""Weighted layers: operands, weight layout, shapes (V04, V10-V12, V24-V27)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from qat_lib.analysis.engine import PredictedEngine
from qat_lib.analysis.findings import Finding, Rule
from qat_lib.analysis.rules.pair_axis import V04
from qat_lib.analysis.rules.pair_types import V27
from qat_lib.analysis.weighted import CONVOLUTIONS, WeightedOp
from qat_lib.graph.roles import onnx_operators
from qat_lib.onnx_view.shapes import fixed_sizes

V10 = Rule("V10", "warning", "only one operand of a weighted layer is quantized", "D")
V11 = Rule("V11", "info", "weighted layer runs in floating point", "D")
V12 = Rule("V12", "warning", "transpose or reshape between the weight's DQ and its layer", "D", "E")
V24 = Rule("V24", "info", "layer is too small to gain from INT8", "J", "M")
V25 = Rule("V25", "info", "channels are not a multiple of 16", "J", "E")
V26 = Rule("V26", "warning", "transposed convolution in INT8 with per-channel weights", "K", "E")

_CONTROL_FLOW = onnx_operators("control flow")
_SMALL = 16


def check_weighted(engine: PredictedEngine) -> Iterator[Finding]:
    """Yield findings about single weighted layers."""
    for op in engine.weighted.values():
        if _has_other_type(op):  # the parser rules report FP8 and INT4
            continue
        yield from _check_operands(op)
        yield from _check_weight(op)
        if op.precision == "int8":
            yield from _check_gain(engine, op)
            yield from _check_channels(engine, op)
            yield from _check_evidence(op)
    for node in engine.flow.operators:
        if node.op in _CONTROL_FLOW:
            yield V27.at(
                node,
                message=f"the graphs inside of this {node.op} are not analyzed; they run as they "
                "are written.",
                advice="Export without control flow: fixed shapes and inference mode usually "
                "remove it.",
            )


def _has_other_type(op: WeightedOp) -> bool:
    for operand in (*op.activations, op.weight):
        if operand is not None and operand.scale is not None and not operand.scale.is_int8:
            return True
    return False


def _check_operands(op: WeightedOp) -> Iterator[Finding]:
    layer = op.node.keras_layer
    if op.precision == "float":
        yield V11.at(
            op.node,
            message=f"{layer!r} has no quantized operand and runs in floating point.",
            advice=f"Quantize {layer!r} if it is not left out on purpose.",
        )
    elif op.precision == "mixed" and op.weight is None and op.node.op in CONVOLUTIONS:
        yield V10.at(
            op.node,
            message=f"the weight of {layer!r} is computed, not constant: it runs in floating "
            "point, behind a loose Q/DQ.",
            advice=f"Make the weight of {layer!r} a constant, or remove the quantizers of its "
            "operands.",
        )
    elif op.precision == "mixed":
        lacking = _lacking_operand(op)
        yield V10.at(
            op.node,
            message=f"{lacking} of {layer!r} is not quantized: it runs in floating point, behind a "
            "loose Q/DQ.",
            advice=f"Quantize {lacking} of {layer!r} too, or neither.",
        )


def _lacking_operand(op: WeightedOp) -> str:
    if op.weight is None:
        return "one of the two activations"
    return "the weight" if op.weight.scale is None else "the input"


def _check_weight(op: WeightedOp) -> Iterator[Finding]:
    weight, layer = op.weight, op.node.keras_layer
    if weight is None or weight.scale is None:
        return
    if weight.layout_ops:
        names = ", ".join(node.op for node in weight.layout_ops)
        yield V12.at(
            op.node,
            message=f"{names} between the weight's DQ and {layer!r}: TensorRT finds no INT8 kernel "
            "for it.",
            advice=f"Store the weight of {layer!r} in the layout that {op.node.op} reads.",
        )
    if None not in (weight.axis, weight.out_axis) and weight.axis != weight.out_axis:
        yield V04.at(
            op.node,
            message=f"the weight of {layer!r} has its scales along axis {weight.axis}; the output "
            f"channels of {op.node.op} are axis {weight.out_axis}.",
            advice=f"Quantize the weight of {layer!r} along its output channels.",
            rule="D",
        )


def _check_gain(engine: PredictedEngine, op: WeightedOp) -> Iterator[Finding]:
    limit = _conv_limit if op.node.op in CONVOLUTIONS else _matmul_limit
    reason = limit(engine, op)
    if reason:
        layer = op.node.keras_layer
        yield V24.at(
            op.node,
            message=f"{layer!r} {reason}: INT8 is not expected to be faster.",
            advice=f"Leave {layer!r} in floating point if it measures no slower.",
        )


def _conv_limit(engine: PredictedEngine, op: WeightedOp) -> str:
    shape = op.weight.shape if op.weight else None
    if shape is None or len(shape) < 3 or op.node.op != "Conv":
        return ""
    filters, per_group, kernel = shape[0], shape[1], shape[2:]
    if filters >= _SMALL and per_group >= _SMALL:
        return ""
    # The limits of TensorRT's INT8 convolutions with few channels, for dense and grouped kernels.
    if op.group == 1:
        aligned = filters % 8 == 0 or per_group % 8 == 0
        large = _reads_input(engine, op) or filters >= _SMALL or per_group >= _SMALL
        fits = aligned and large and len(set(kernel)) == 1
    else:
        fits = filters % 8 == 0 and min(kernel) >= 3
    if fits:
        return ""
    return f"has {per_group * op.group} input and {filters} output channels in {op.group} groups"


def _matmul_limit(engine: PredictedEngine, op: WeightedOp) -> str:
    left = engine.graph.shape(op.node.input(0))
    right = engine.graph.shape(op.node.input(1))
    result = engine.graph.shape(op.node.outputs[0])
    if not left or not right or not result or len(right) < 2:
        return ""
    inner = left[0] if op.node.integer("transA") else left[-1]
    columns = result[-1]
    for size, what in ((inner, "inner products"), (columns, "outputs")):
        if isinstance(size, int) and size < _SMALL:
            return f"has {size} {what}"
    # In a batched product of activations, each matrix is multiplied separately, so the batch adds
    # no rows.
    outer = result[:-1] if op.weight is not None else result[-2:-1]
    rows = fixed_sizes(outer)
    if len(rows) == len(outer) and prod(rows) == 1:
        return "multiplies one row"
    return ""


def _check_channels(engine: PredictedEngine, op: WeightedOp) -> Iterator[Finding]:
    shape = op.weight.shape if op.weight else None
    if op.node.op != "Conv" or shape is None or len(shape) < 3 or op.depthwise:
        return  # a depthwise kernel uses no tensor cores
    given, filters = shape[1] * op.group, shape[0]
    counts = (filters,) if _reads_input(engine, op) else (given, filters)
    odd = [str(count) for count in dict.fromkeys(counts) if count % 16]
    if odd:
        layer = op.node.keras_layer
        yield V25.at(
            op.node,
            message=f"{layer!r} has {' and '.join(odd)} channels: tensor cores work on 16 at a "
            "time.",
            advice=f"If the architecture is yours, round the channels of {layer!r} to a multiple "
            "of 16.",
        )


def _check_evidence(op: WeightedOp) -> Iterator[Finding]:
    layer, weight = op.node.keras_layer, op.weight
    if weight is None or weight.scale is None:
        return
    if op.node.op == "ConvTranspose" and weight.scale.count > 1:
        grouped = f" in {op.group} groups" if op.group > 1 else ""
        yield V26.at(
            op.node,
            message=f"{layer!r} is a transposed convolution{grouped} with one scale for each "
            "channel, for which wrong results, missing kernels and slow engines were reported.",
            advice=f"Leave {layer!r} in floating point, or give its weight one scale.",
        )
    if op.node.op in CONVOLUTIONS and weight.shape is not None and len(weight.shape) != 4:
        yield V27.at(
            op.node,
            message=f"{layer!r} is a convolution over {len(weight.shape) - 2} dimensions; no "
            "engine is known to show that it runs in INT8.",
            advice=f"Measure {layer!r} in INT8 and in floating point.",
        )


def _reads_input(engine: PredictedEngine, op: WeightedOp) -> bool:
    """Return whether an operand is a graph input, possibly moved, padded or cast."""
    return any(_is_input(engine, read.value) for read in op.activations)


def _is_input(engine: PredictedEngine, value: str) -> bool:
    producer = engine.graph.producer(value)
    while producer is not None and (producer.op == "Cast" or engine.graph.moves_values(producer)):
        value = engine.flow.trace(producer.input(0)).value
        producer = engine.graph.producer(value)
    return producer is None
