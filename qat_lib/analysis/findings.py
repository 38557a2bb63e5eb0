"""Findings of the analyzer and verifier: one per place and rule.

The codes are stable, for use in gates, suppression lists and tests. ``qat_lib.analysis.CATALOG``
contains all of them. V01 to V07 concern legality (does TensorRT's ONNX parser accept the graph
with the intended meaning), V08 to V28 speed and placement; H1 to H3 are optional hints. C01, C02
and Q01 to Q05 come from the verifier.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from qat_lib.errors import ConfigError
from qat_lib.onnx_view.identity import guess_layer

if TYPE_CHECKING:
    from qat_lib.onnx_view.graph import Node

Severity = Literal["error", "warning", "info"]

#: Evidence for a rule: **D**ocumented by NVIDIA, seen in **E**ngines, a **M**odelOpt heuristic,
#: **I**nferred.
Confidence = Literal["D", "E", "M", "I"]

_RANK: dict[str, int] = {"info": 0, "warning": 1, "error": 2}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem in a graph: its node, its cause and its remedy.

    Attributes:
        code: a key of ``qat_lib.analysis.CATALOG``.
        severity: ``"error"`` (illegal, or built differently than intended), ``"warning"``
            (another placement would be faster) or ``"info"``.
        node: name of the ONNX node, otherwise of the tensor or file.
        message: the observation and its reason, one sentence.
        advice: the remedy, in terms of the Keras layer.
        confidence: evidence for the rule, see ``Confidence``.
        rule: the underlying rule (``"P5"``, ``"F3"``).
        keras_layer: the Keras layer of the node; empty if unknown.
        quantizer: the quantizer of a Q or DQ node; empty for other nodes.
    """

    code: str
    severity: Severity
    node: str
    message: str
    advice: str
    confidence: Confidence
    rule: str = ""
    keras_layer: str = ""
    quantizer: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the finding as a plain dict of strings."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.code} {self.severity} {self.node}: {self.message} {self.advice}".rstrip()


@dataclass(frozen=True)
class Rule:
    """Declaration of a code; ``at`` creates its findings.

    Attributes:
        code: the stable name, such as ``"V19"``.
        severity: default severity of its findings.
        title: its meaning in a few words, without a full stop.
        rules: numbers and letters of the underlying rules, separated by spaces (P: parser rules,
            letters: placement rules); the first is the default of a finding. Default: the code.
        confidence: evidence for the rule, see ``Confidence``. Default "D".

    Examples:
        >>> V19 = Rule("V19", "warning", "pooling reads INT8 and writes floating point", "G")
        >>> V19.at("quant_pool/AveragePool", message="It is float.", advice="Quantize it.").rule
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
            node: the node, or the name of a node, tensor or file.
            message: the observation and its reason, one sentence.
            advice: the remedy, in terms of the Keras layer.
            rule: the underlying rule. Default: the first of ``rules``.
            severity: severity of the finding. Default: as declared.
            confidence: evidence for the finding. Default: as declared.
            layer: the Keras layer. Default: the layer of the node, guessed from a name.
        """
        if isinstance(node, str):
            name, own_layer, quantizer = node, guess_layer(node), ""
        else:
            name, own_layer, quantizer = node.name, node.keras_layer, node.quantizer
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            node=name,
            message=message,
            advice=advice,
            confidence=confidence or self.confidence,
            rule=rule or (self.rules or self.code).split()[0],
            keras_layer=own_layer if layer is None else layer,
            quantizer=quantizer,
        )


def at_least(findings: Iterable[Finding], severity: Severity) -> list[Finding]:
    """Return the findings of ``severity`` or worse."""
    return [finding for finding in findings if _RANK[finding.severity] >= _RANK[severity]]


def fail_on(findings: Iterable[Finding], severity: str | None) -> list[Finding]:
    """Return the findings of ``severity`` or worse; an empty list passes the gate.

    Args:
        findings: findings of the analyzer or the verifier.
        severity: ``"error"`` or ``"warning"``; ``None`` or ``"never"`` disables the gate.

    Raises:
        ConfigError: ``severity`` has another value.
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
    """Return the findings by severity, the most severe first."""
    return sorted(findings, key=lambda finding: -_RANK[finding.severity])
