"""FusionReport: the prediction as plain data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from qat_lib.analysis.findings import Finding
from qat_lib.analysis.weighted import Precision
from qat_lib.pages.graph import GraphView

REPORT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class LayerVerdict:
    """One weighted layer.

    Attributes:
        name: ONNX node.
        keras_layer: corresponding Keras layer.
        op_type: ``"Conv"``, ``"ConvTranspose"``, ``"Gemm"`` or ``"MatMul"``.
        precision: ``"int8"``; ``"mixed"`` if only one operand is quantized and the kernel
            therefore runs in floating point; ``"float"``.
        writes: ``"int8"`` or ``"float"``.
        float_type: floating-point type of the layer, ``"float32"`` or ``"float16"`` (half).
        macs: multiply-accumulates of one run, with open dimensions counted as 1; 0 if unknown.
        macs_share: share of the whole graph's multiply-accumulates, 0 to 1.
        kernel: nodes of its kernel joined by " + ", like TensorRT's layer names.
        quantizer: quantizer of its weight; empty for an unquantized weight.
    """

    name: str
    keras_layer: str
    op_type: str
    precision: Precision
    writes: str
    float_type: str
    macs: int
    macs_share: float
    kernel: str
    quantizer: str = ""


@dataclass(frozen=True, kw_only=True)
class AddVerdict:
    """One Add of two activations; ``fused_into`` names the weighted node of its kernel, if any."""

    name: str
    keras_layer: str
    fused_into: str | None
    precision: str
    rule: str


@dataclass(frozen=True, kw_only=True)
class PoolVerdict:
    """One pooling operator."""

    name: str
    keras_layer: str
    op_type: str
    precision: str


@dataclass(frozen=True, kw_only=True)
class KernelVerdict:
    """One predicted layer of the engine.

    Attributes:
        kind: ``"reformat"`` (a Q, a DQ or a transpose by itself), ``"requantize"``,
            ``"elementwise"``, or for compute kernels ``"weighted"``, ``"pool"``, ``"concat"``,
            ``"shape"``, ``"other"``.
        detail: for conversions ``"quantize"``, ``"dequantize"``, ``"requantize"``, ``"rescale"`` or
            ``"transpose"``.
        name: nodes joined by " + "; for a conversion the Q/DQ node or the tensor.
    """

    kind: str
    detail: str
    name: str
    keras_layer: str
    reads: str
    writes: str


@dataclass(frozen=True, kw_only=True, repr=False)
class FusionReport:
    """Predicted engine of an ONNX file.

    Attributes:
        model: path of the file.
        target: predicted backend.
        exported_for: export target of the file; None in files of other producers.
        layers: weighted layers.
        adds: Adds of two activations; Adds of rule F6 broadcast and are not residual.
        pools: pooling operators.
        kernels: predicted stand-alone kernels: conversions, transposes and unfused elementwise
            operators.
        engine: all predicted layers of the engine, ``kernels`` included.
        islands: connected groups of floating-point kernels between INT8 kernels, by name.
        findings: findings of the rules, in graph order.
        drawing: the graph, for ``qat_lib.analysis.to_html``; not part of the JSON.
    """

    model: str
    target: str
    exported_for: str | None
    layers: tuple[LayerVerdict, ...]
    adds: tuple[AddVerdict, ...]
    pools: tuple[PoolVerdict, ...]
    kernels: tuple[KernelVerdict, ...]
    engine: tuple[KernelVerdict, ...]
    islands: tuple[tuple[str, ...], ...]
    findings: tuple[Finding, ...]
    drawing: GraphView = field(repr=False, compare=False)

    def __repr__(self) -> str:
        """Return a one-line summary of the report."""
        counts = f"{self.int8_layers} of {len(self.layers)} layers in INT8"
        return f"<FusionReport of {self.model!r}: {counts}, {len(self.findings)} findings>"

    @property
    def target_note(self) -> str:
        """Note about a different export target of the file; empty if both agree."""
        if self.exported_for in (None, self.target):
            return ""
        return (
            f"This file was exported for {self.exported_for}, and the prediction is for "
            f"{self.target}. For an engine of {self.target}, export the model with "
            f"--target {self.target}."
        )

    @property
    def int8_layers(self) -> int:
        """Number of weighted layers in INT8."""
        return _count_int8(self.layers)

    @property
    def int8_macs_share(self) -> float:
        """Share of the multiply-accumulates in INT8, 0 to 1; 0 if unknown."""
        return sum(layer.macs_share for layer in self.layers if layer.precision == "int8")

    @property
    def fused_adds(self) -> int:
        """Number of Adds fused into the kernel of a weighted layer."""
        return sum(add.fused_into is not None for add in self.adds)

    def count(self, severity: str) -> int:
        """Return the number of findings of one severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def summary(self) -> dict[str, Any]:
        """Return the key figures."""
        return {
            "weighted_layers": len(self.layers),
            "int8_layers": self.int8_layers,
            "int8_macs_share": round(self.int8_macs_share, 6),
            "adds": sum(add.rule != "F6" for add in self.adds),
            "fused_adds": self.fused_adds,
            "int8_adds": _count_int8(self.adds),
            "pools": len(self.pools),
            "int8_pools": _count_int8(self.pools),
            "engine_layers": len(self.engine),
            "kernels": dict(Counter(kernel.detail or kernel.kind for kernel in self.kernels)),
            "islands": len(self.islands),
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "infos": self.count("info"),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain lists and dicts."""
        # asdict copies deeply: dropping the drawing first saves the copy of the whole graph.
        data = asdict(replace(self, drawing=GraphView()))
        del data["drawing"]
        return {"version": REPORT_VERSION, "summary": self.summary(), **data}

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)


def _count_int8(verdicts: Iterable[LayerVerdict | AddVerdict | PoolVerdict]) -> int:
    return sum(verdict.precision == "int8" for verdict in verdicts)
