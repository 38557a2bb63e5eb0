"""Output of export_onnx: ONNX graphs, their checks, the fusion analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from qatline.components.artifacts.folder import StepFolder
from qatline.components.artifacts.models import ModelFolder, open_plan
from qatline.components.artifacts.record import Measured, Record, Text
from qatline.components.artifacts.variants import HALF, Variant

if TYPE_CHECKING:
    from qat_lib.core.plan import QuantizationPlan


class FindingRecord(Record):
    """One finding of the verification or of the fusion analysis.

    See ``qat_lib.analysis.Finding``.
    """

    code: Text = ""
    severity: Text = "error"
    node: Text = ""
    message: Text = ""
    advice: Text = ""
    confidence: Text = ""
    rule: Text = ""
    keras_layer: Text = ""
    quantizer: Text = ""

    @property
    def is_error(self) -> bool:
        """Whether the graph is invalid or deviates from the plan.

        Findings without a severity count as errors.
        """
        return self.severity in ("error", "")


class ParityRecord(Record):
    """Agreement of ONNX Runtime with Keras; see ``qat_lib.export.ParityReport``.

    Attributes:
        fp32: parity of the same graph in FP32.
    """

    samples: Measured = None
    largest_difference: Measured = None
    mean_difference: Measured = None
    magnitude: Measured = None
    labels_equal: Measured = None
    ties: Measured = None
    mismatches: Measured = None
    step: Measured = None
    noise: Measured = None
    tolerance: Measured = None
    passed: bool = False
    fp32: ParityRecord | None = None


class ExportRecord(Record):
    """One exported graph; ``verification`` is None if it was not verified."""

    bytes: Measured = None
    seconds: Measured = None
    conversion_seconds: Measured = None
    opset: Measured = None
    quantizers: Measured = None
    nodes: Measured = None
    target: Text = ""
    float_precision: Text = ""
    verification: Sequence[FindingRecord] | None = None
    parity: ParityRecord | None = None

    def numbers(self) -> dict[str, float]:
        """Return the main metrics by name, without unmeasured ones."""
        difference = self.parity.largest_difference if self.parity else None
        figures = {
            "bytes": self.bytes,
            "seconds": self.seconds,
            "largest_difference": difference,
            "quantizers": self.quantizers,
        }
        return {name: value for name, value in figures.items() if value is not None}


class LayerPrediction(Record):
    """Fusion prediction for a weighted layer."""

    name: Text = ""
    keras_layer: Text = ""
    op_type: Text = ""
    precision: Text = ""
    macs_share: Measured = None


class Analysis(Record):
    """The fusion analysis; ``findings`` is None if it was not run."""

    layers: Sequence[LayerPrediction] = ()
    findings: Sequence[FindingRecord] | None = None


class Exported(StepFolder):
    """The exported graphs."""

    STEP: ClassVar[str] = "export_onnx"
    PLAN: ClassVar[str] = ModelFolder.PLAN
    SUMMARY: ClassVar[str] = "export.json"
    ANALYSIS: ClassVar[str] = "analysis.json"
    ANALYSIS_PAGE: ClassVar[str] = "analysis.html"

    def graph(self, variant: Variant) -> Path:
        """Return the ONNX file of a variant."""
        return self.file(variant.onnx)

    def reference(self, variant: Variant) -> Path:
        """Return the reference graph of an engine's outputs.

        If the backend selects FP16 or BF16, these variants have no separate graph and share that of
        FP32.
        """
        shared = variant in HALF and not self.has(variant.onnx)
        return self.graph(Variant.FP32 if shared else variant)

    def plan(self) -> QuantizationPlan:
        """Return the plan used for the verification of the graphs."""
        return open_plan(self, self.PLAN)

    def summary(self) -> dict[str, ExportRecord]:
        """Return the record of each graph, by variant."""
        return self.read(self.SUMMARY, dict[str, ExportRecord])

    def write_summary(self, summary: Mapping[str, ExportRecord]) -> None:
        """Write the record of each graph."""
        content = {str(variant): record.to_dict() for variant, record in summary.items()}
        self.write(self.SUMMARY, content)

    def analysis(self) -> Analysis:
        """Return the fusion analysis of the candidate."""
        return self.read(self.ANALYSIS, Analysis)

    def write_analysis(self, text: str, page: str) -> None:
        """Write the candidate's fusion analysis as JSON and HTML."""
        self.file(self.ANALYSIS).write_text(text + "\n", encoding="utf-8")
        self.file(self.ANALYSIS_PAGE).write_text(page, encoding="utf-8")
