"""Translate TensorRT's messages: node, reason, finding code, advice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qat_lib.errors import EngineBuildError


@dataclass(frozen=True, kw_only=True)
class ParserFinding:
    """One parser error: place, reason, the analyzer's finding code and advice."""

    code: str
    node: str
    operator: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.code} {self.operator} {self.node}: {self.reason} {self.advice}"


# The first pattern found in the operator and the message decides. The codes are defined in
# qat_lib.analysis.
_PARSER_RULES: tuple[tuple[str, str, str], ...] = (
    (
        r"QLinear|ConvInteger|MatMulInteger|DynamicQuantizeLinear",
        "V05",
        "Export Q/DQ pairs instead of integer operators.",
    ),
    (
        r"[Ss]cale coefficients|positive|[Ss]cale.*constant",
        "V01",
        "Every scale must be a positive constant; a channel that is always zero needs a small one.",
    ),
    (
        r"[Zz]ero.?point|symmetric",
        "V02",
        "Quantize symmetrically: zero points are 0 and have the shape of the scale.",
    ),
    (
        r"UINT8|[Uu]nsigned|INT32.*quantiz",
        "V03",
        "Use signed INT8 for every Q/DQ pair, and leave biases in float.",
    ),
    (
        r"number of scales|output channels|\baxis\b",
        "V04",
        "Write the axis of per-channel scales explicitly: the output channels of the weight.",
    ),
    (
        r"opset|output_dtype|same (data )?type",
        "V06",
        "Export with opset 17 or newer and give a Q/DQ pair one float type.",
    ),
)
_OTHER_PARSER_RULE = (
    "V07",
    "Leave the layer out of quantization, or replace it by operators that TensorRT imports.",
)

_OUT_OF_MEMORY = re.compile(
    r"[Oo]ut of memory|OutOfMemory|insufficient memory|cudaErrorMemoryAllocation|GPU memory"
)
_NO_KERNEL = re.compile(
    r"[Cc]ould not find any implementation for node (?P<node>.+?)(?:\.$|\.\s|$)"
)


def read_parser_errors(
    parser: Any, names_nodes: bool, nodes: Sequence[tuple[str, str]]
) -> list[ParserFinding]:
    """Translate the errors of an ``OnnxParser``.

    Args:
        parser: the parser, after a failed parse.
        names_nodes: whether its errors contain the node's name; otherwise ``nodes`` maps the
            node's index to its name.
        nodes: name and operator of each node in graph order.
    """
    findings = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        if names_nodes:
            name, operator = error.node_name(), error.node_operator()
        else:
            position = error.node()
            name, operator = nodes[position] if 0 <= position < len(nodes) else ("the graph", "")
        reason = error.desc().strip().rstrip(".") + "."
        rules = (rule[1:] for rule in _PARSER_RULES if re.search(rule[0], f"{operator} {reason}"))
        code, advice = next(rules, _OTHER_PARSER_RULE)
        findings.append(
            ParserFinding(code=code, node=name, operator=operator, reason=reason, advice=advice)
        )
    return findings


def explain_failed_build(errors: Sequence[str], context: Mapping[str, Any]) -> EngineBuildError:
    """Return the error of a failed build from its log messages."""
    reasons = " ".join(errors[-3:]) or "TensorRT gave no reason."
    for message in errors:
        match = _NO_KERNEL.search(message)
        if match:
            return EngineBuildError(
                f"TensorRT has no kernel for {match['node']} on this GPU. Leave that layer out of "
                "quantization (a spec entry with quantize: false), or raise the workspace limit. "
                f"TensorRT: {reasons}"
            )
    if any(_OUT_OF_MEMORY.search(message) for message in errors):
        return EngineBuildError(
            f"The build ran out of GPU memory (workspace limit {context['workspace']}, shapes "
            f"{context['shapes']}). Close other programs on the GPU, lower the workspace limit or "
            f"the largest batch, or lower the optimization level. TensorRT: {reasons}"
        )
    return EngineBuildError(f"TensorRT built no engine. {reasons}")
