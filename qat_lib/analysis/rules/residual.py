"""Residual Adds without an INT8 fusion (V15 to V18)."""

from __future__ import annotations

from collections.abc import Iterator

from qat_lib.analysis.chains import Chain
from qat_lib.analysis.engine import PredictedEngine
from qat_lib.analysis.findings import Finding, Rule
from qat_lib.analysis.reads import ends_in_float, float_reads
from qat_lib.analysis.residual import PlacedAdd
from qat_lib.analysis.rules.attention import between_products
from qat_lib.analysis.rules.mixed import V18

V15 = Rule("V15", "warning", "residual operand of a fused Add is floating point", "F2", "E")
V16 = Rule("V16", "warning", "residual is quantized but the Add's output is not", "F3", "E")
V17 = Rule("V17", "warning", "both operands of a residual Add are quantized", "F4")


def check_residual(engine: PredictedEngine) -> Iterator[Finding]:
    """Yield the obstacles to INT8 fusion of the Adds of a graph."""
    in_attention = between_products(engine)
    for placed in engine.adds:
        if placed.node.index in in_attention:
            continue
        if placed.chain is not None:
            yield from _check_fused(engine, placed, placed.chain)
        elif placed.branch is not None:  # F4
            yield _between_quantized(placed, placed.branch)


def _check_fused(engine: PredictedEngine, placed: PlacedAdd, chain: Chain) -> Iterator[Finding]:
    """Yield the obstacles to INT8 of an Add fused into ``chain``."""
    name, into = placed.node.keras_layer, chain.op.node.keras_layer
    if chain.op.precision != "int8":
        if chain.residual is not None and chain.residual.scale is not None:
            yield V18.at(
                placed.node,
                message=f"the residual of {name!r} is quantized, but {into!r}, which it fuses "
                "into, is floating point.",
                advice=f"Quantize {into!r}, or remove the Q on the residual.",
                rule=placed.rule,
                confidence="E",
            )
    elif placed.rule == "F2":
        yield V15.at(
            placed.node,
            message=f"the residual operand of {name!r} is floating point, so the kernel of "
            f"{into!r} that it fuses into writes floating point.",
            advice=f"Quantize the residual input of {name!r}{_residual_name(engine, chain)}.",
            severity="info" if _ends_in_float(engine, chain) else None,
        )
    elif placed.rule == "F3":
        unavoidable = _ends_in_float(engine, chain) and _is_shared(engine, chain)
        yield V16.at(
            placed.node,
            message=f"the residual of {name!r} is quantized but a reader of its output "
            f"is not: a separate kernel dequantizes the residual and {into!r} writes floating "
            "point.",
            advice=f"Quantize the readers of {name!r} (often a global average pool or a "
            "Concat) with one scale.",
            severity="info" if unavoidable else None,
        )


def _between_quantized(placed: PlacedAdd, behind: Chain) -> Finding:
    name, branch = placed.node.keras_layer, behind.op.node.keras_layer
    return V17.at(
        placed.node,
        message=f"both operands of {name!r} are quantized, so it does not fuse into {branch!r} but "
        "is a separate kernel.",
        advice=f"Remove the Q on the output of {branch!r}; keep the one on the other operand.",
    )


def _ends_in_float(engine: PredictedEngine, chain: Chain) -> bool:
    """Return whether a graph output or an always-float operator reads the Add.

    No placement makes such a read INT8.
    """
    return any(map(ends_in_float, float_reads(engine.flow.readers(chain.end))))


def _is_shared(engine: PredictedEngine, chain: Chain) -> bool:
    """Return whether the residual has other INT8 readers.

    They need its Q for an INT8 output of the previous kernel.
    """
    residual = chain.residual
    others = engine.flow.readers(residual.value) if residual is not None else ()
    return any(read is not residual and read.scale is not None for read in others)


def _residual_name(engine: PredictedEngine, chain: Chain) -> str:
    residual = chain.residual
    source = engine.graph.producer(residual.value) if residual is not None else None
    return f", which is the output of {source.keras_layer!r}" if source is not None else ""
