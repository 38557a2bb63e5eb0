"""Residual Adds: why one does not run in INT8 inside of a convolution's kernel (V15 to V18)."""

from __future__ import annotations

from collections.abc import Iterator

from qat_lib.analysis.chains import Chain
from qat_lib.analysis.engine import FLOAT_ONLY, PredictedEngine
from qat_lib.analysis.findings import Confidence, Finding, Severity, make_finding
from qat_lib.analysis.residual import PlacedAdd
from qat_lib.analysis.rules.attention import between_products
from qat_lib.onnx_view.names import keras_layer


def check_adds(engine: PredictedEngine) -> Iterator[Finding]:
    """Yield what keeps the Adds of a graph from their best form."""
    in_attention = between_products(engine)
    for placed in engine.adds:
        if placed.node.index not in in_attention:
            yield from _check(engine, placed)


def _check(engine: PredictedEngine, placed: PlacedAdd) -> Iterator[Finding]:
    name = keras_layer(placed.node.name)
    if placed.chain is not None:
        into = keras_layer(placed.chain.op.node.name)
        residual = placed.chain.residual
        if placed.chain.op.precision != "int8":
            if residual is not None and residual.scale is not None:
                yield _finding(
                    "V18",
                    placed,
                    "E",
                    f"the residual of {name!r} is quantized, but {into!r}, which it fuses into, is floating point.",
                    f"Quantize {into!r}, or remove the Q on the residual.",
                )
        elif placed.rule == "F2":
            yield _finding(
                "V15",
                placed,
                "E",
                f"the residual operand of {name!r} is floating point, so the kernel of {into!r} that it fuses into "
                "writes floating point.",
                f"Quantize the residual input of {name!r}{_residual_name(engine, placed)}.",
                severity="info" if _ends_in_float(engine, placed.chain) else None,
            )
        elif placed.rule == "F3":
            yield _finding(
                "V16",
                placed,
                "E",
                f"the residual of {name!r} is quantized but not everything that reads its output is: a separate kernel "
                f"dequantizes the residual and {into!r} writes floating point.",
                f"Quantize what reads the output of {name!r} (often a global average pool or a Concat) with one scale.",
                severity="info"
                if _ends_in_float(engine, placed.chain) and _is_shared(engine, placed.chain)
                else None,
            )
    elif placed.branch is not None:  # F4
        branch = keras_layer(placed.branch.op.node.name)
        yield _finding(
            "V17",
            placed,
            "D",
            f"both operands of {name!r} are quantized, so it does not fuse into {branch!r} but is a kernel of its own.",
            f"Remove the Q on the output of {branch!r}; keep the one on the other operand.",
        )


def _ends_in_float(engine: PredictedEngine, chain: Chain) -> bool:
    """Return whether something reads the Add that no placement makes INT8: an output, or what is always float."""
    floats = [read for read in engine.flow.readers(chain.end) if read.scale is None]
    return any(read.node is None or read.node.op in FLOAT_ONLY for read in floats)


def _is_shared(engine: PredictedEngine, chain: Chain) -> bool:
    """Return whether others read the residual in INT8 too, so that without its Q their kernel would write float."""
    residual = chain.residual
    others = engine.flow.readers(residual.value) if residual is not None else ()
    return any(read.scale is not None for read in others if read is not residual)


def _residual_name(engine: PredictedEngine, placed: PlacedAdd) -> str:
    residual = placed.chain.residual if placed.chain is not None else None
    source = engine.graph.producer(residual.value) if residual is not None else None
    return f", which is the output of {keras_layer(source.name)!r}" if source is not None else ""


def _finding(
    code: str,
    placed: PlacedAdd,
    confidence: Confidence,
    message: str,
    advice: str,
    severity: Severity | None = None,
) -> Finding:
    name = placed.node.name
    return make_finding(
        code,
        name,
        message,
        advice,
        confidence,
        rule=placed.rule,
        severity=severity,
        keras_layer=keras_layer(name),
    )
