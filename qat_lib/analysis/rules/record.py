"""Codes of the verification against the plan and the export's record.

``qat_lib.export.verify`` contains the checks.
"""

from __future__ import annotations

from qat_lib.analysis.findings import Rule

C01 = Rule("C01", "error", "the file is not valid ONNX")
C02 = Rule("C02", "warning", "the file was not compared with its model")
Q01 = Rule("Q01", "error", "a quantizer of the plan is missing in the graph")
Q02 = Rule("Q02", "error", "the graph has a quantizer that the plan does not have")
Q03 = Rule("Q03", "error", "the scale of a quantizer is not the learned one")
Q04 = Rule("Q04", "error", "the INT8 weights are not the learned ones")
Q05 = Rule("Q05", "error", "a Q or DQ has lost its partner or one of its readers")
