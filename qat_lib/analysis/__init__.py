"""Predict TensorRT's handling of an ONNX Q/DQ graph without TensorRT or GPU."""

from qat_lib.analysis.analyze import analyze_graph, analyze_onnx
from qat_lib.analysis.catalog import CATALOG
from qat_lib.analysis.comparison import Comparison, compare
from qat_lib.analysis.findings import Finding, by_severity, fail_on
from qat_lib.analysis.html import to_html
from qat_lib.analysis.report import (
    AddVerdict,
    FusionReport,
    KernelVerdict,
    LayerVerdict,
    PoolVerdict,
)

__all__ = [
    "CATALOG",
    "AddVerdict",
    "Comparison",
    "Finding",
    "FusionReport",
    "KernelVerdict",
    "LayerVerdict",
    "PoolVerdict",
    "analyze_graph",
    "analyze_onnx",
    "by_severity",
    "compare",
    "fail_on",
    "to_html",
]
