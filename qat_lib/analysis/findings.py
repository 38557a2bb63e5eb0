"""What the analyzer and the verifier say about a graph: one finding per place and rule.

The codes are stable: a gate, a suppression list or a test may name them. ``CATALOG`` is the one
table of them. V01 to V07 are about legality (will TensorRT's ONNX parser take the graph as it is
meant), V08 to V28 about speed and placement, H1 to H3 are hints that cost nothing to ignore.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from qat_lib.errors import ConfigError
from qat_lib.onnx_view.names import keras_layer

if TYPE_CHECKING:
    from qat_lib.onnx_view.graph import Node

Severity = Literal["error", "warning", "info"]

#: How far a rule can be trusted: **D**ocumented by NVIDIA, seen in **E**ngines, a **M**odelOpt heuristic, **I**nferred.
Confidence = Literal["D", "E", "M", "I"]

_RANK: dict[str, int] = {"info": 0, "warning": 1, "error": 2}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Name a place in a graph, what is the matter with it and what would mend it.

    Attributes:
        code: a key of :data:`CATALOG`.
        severity: ``"error"`` (illegal or built differently than meant), ``"warning"`` (costs speed
            that another placement would save) or ``"info"``.
        node: name of the ONNX node, or of the tensor or file where there is no node.
        message: the fact and the reason, one sentence.
        advice: the change that mends it, in terms of the Keras layer.
        confidence: how far the rule can be trusted, see :data:`Confidence`.
        rule: the rule behind it (``"P5"``, ``"F3"``).
        keras_layer: the Keras layer that the node came from, best effort; empty when unknown.
    """

    code: str
    severity: Severity
    node: str
    message: str
    advice: str
    confidence: Confidence
    rule: str = ""
    keras_layer: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the finding as a plain dict of strings."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.code} {self.severity} {self.node}: {self.message} {self.advice}".rstrip()


@dataclass(frozen=True)
class Rule:
    """Declare a code once; :meth:`at` reports where it applies.

    Attributes:
        code: the stable name, such as ``"V19"``.
        severity: default severity of its findings.
        title: its meaning in a few words, without a full stop.
        rules: the numbers and letters of the rules behind it, separated by spaces (P: parser rules,
            letters: placement rules); the first is the default of a finding. Default: the code.
        confidence: how far it can be trusted, see :data:`Confidence`. Default "D".

    Example:
        >>> V19 = Rule("V19", "warning", "pooling reads INT8 and writes floating point", "G")
        >>> V19.at("quant_pool/AveragePool", message="It is dequantized.", advice="Quantize it.").rule
        'G'
    """

    code: str
    severity: Severity
    title: str
    rules: str = ""
    confidence: Confidence = "D"

    def at(
        self,
        node: Node | str,
        *,
        message: str,
        advice: str,
        rule: str | None = None,
        severity: Severity | None = None,
        confidence: Confidence | None = None,
        layer: str | None = None,
    ) -> Finding:
        """Return a finding at ``node``.

        Args:
            node: the node, or the name of the node, tensor or file where there is none.
            message: the fact and the reason, one sentence.
            advice: the change that mends it, in terms of the Keras layer.
            rule: the rule behind it. Default: the first of :attr:`rules`.
            severity: Default: that of the code.
            confidence: Default: that of the code.
            layer: the Keras layer. Default: the one that the node's name tells.
        """
        name = node if isinstance(node, str) else node.name
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            node=name,
            message=message,
            advice=advice,
            confidence=confidence or self.confidence,
            rule=rule or (self.rules or self.code).split()[0],
            keras_layer=keras_layer(name) if layer is None else layer,
        )


def _catalog(rows: Iterable[tuple[str, Severity, str, str]]) -> dict[str, Rule]:
    return {
        code: Rule(code=code, severity=severity, rules=rules, title=title)
        for code, severity, rules, title in rows
    }


#: Every code with its title, default severity and the rules it stands for (P: parser rules, letters: placement rules).
CATALOG: dict[str, Rule] = _catalog(
    [
        ("V01", "error", "P1 P2 P3", "scale missing, not positive or not constant"),
        ("V02", "error", "P4 P7", "zero point is not zero or does not match the scale"),
        ("V03", "error", "P5 P6 P8", "quantized type is not signed INT8"),
        (
            "V04",
            "error",
            "P9 P10 P12 P13 D",
            "per-channel axis is wrong, missing or on an activation",
        ),
        ("V05", "error", "P15", "integer operator that TensorRT does not import"),
        ("V06", "error", "P14", "operator set or type of a Q/DQ pair does not fit"),
        ("V07", "error", "P17 P18 P19 L", "the parser cannot take this node as it is meant"),
        ("V08", "warning", "A", "one tensor is quantized with several scales"),
        ("V09", "warning", "C", "requantization between two scales"),
        ("V10", "warning", "D", "only one operand of a weighted layer is quantized"),
        ("V11", "info", "D", "weighted layer stays in floating point"),
        ("V12", "warning", "D", "transpose or reshape between the weight's DQ and its layer"),
        (
            "V13",
            "warning",
            "E",
            "layer writes floating point and its Q becomes a kernel of its own",
        ),
        ("V14", "warning", "E", "Q/DQ between a layer and its normalization or activation"),
        ("V15", "warning", "F2", "residual operand of a fused Add is floating point"),
        ("V16", "warning", "F3", "residual is quantized but the Add's output is not"),
        ("V17", "warning", "F4", "both operands of a residual Add are quantized"),
        ("V18", "warning", "F5 I", "elementwise operator with mixed precision"),
        ("V19", "warning", "G", "pooling reads INT8 and writes floating point"),
        ("V20", "warning", "H", "inputs or output of a Concat have different scales"),
        ("V21", "warning", "H", "Concat mixes quantized and floating-point inputs"),
        ("V22", "warning", "I", "Q/DQ around an operator that always runs in floating point"),
        ("V23", "warning", "J", "attention mask or Softmax input is quantized"),
        ("V24", "info", "J", "layer is too small to gain from INT8"),
        ("V25", "info", "J", "channels are not a multiple of 16"),
        ("V26", "warning", "K", "transposed convolution in INT8 with per-channel weights"),
        ("V27", "warning", "K P18", "no engine is known to show how this runs in INT8"),
        ("V28", "error", "M", "types of a DQ and of the operands that it meets differ"),
        ("H1", "info", "E", "zero padding could be an attribute of the layer behind it"),
        ("H2", "info", "L", "the input's Q is a kernel of its own"),
        ("H3", "info", "L", "the input is transposed inside the graph"),
    ]
)


def make_finding(
    code: str,
    node: str,
    message: str,
    advice: str,
    confidence: Confidence,
    *,
    rule: str = "",
    severity: Severity | None = None,
    keras_layer: str = "",
) -> Finding:
    """Build a finding of ``code`` with the catalog's severity unless ``severity`` is given."""
    return CATALOG[code].at(
        node,
        message=message,
        advice=advice,
        rule=rule,
        severity=severity,
        confidence=confidence,
        layer=keras_layer,
    )


def at_least(findings: Iterable[Finding], severity: Severity) -> list[Finding]:
    """Return the findings that are as severe as ``severity`` or more."""
    return [finding for finding in findings if _RANK[finding.severity] >= _RANK[severity]]


def fail_on(findings: Iterable[Finding], severity: str | None) -> list[Finding]:
    """Return the findings that close the gate ``severity``; an empty list lets the graph pass.

    Args:
        findings: what the analyzer or the verifier said.
        severity: ``"error"`` or ``"warning"``; ``None`` or ``"never"`` is a gate that stays open.

    Raises:
        ConfigError: ``severity`` is something else.
    """
    if severity is None or severity == "never":
        return []
    if severity == "error":
        return at_least(findings, "error")
    if severity == "warning":
        return at_least(findings, "warning")
    raise ConfigError(
        f"Expected fail_on to be 'error', 'warning' or 'never'. Received: {severity!r}."
    )


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with the most severe first, otherwise in the order they came."""
    return sorted(findings, key=lambda finding: -_RANK[finding.severity])
