"""Write docs/reference/measurements.md from the files in benchmarks/results."""

from __future__ import annotations

import sys

import measured_accuracy as accuracy
import measured_cost as cost
from tables import ROOT

TARGET = ROOT / "docs" / "reference" / "measurements.md"

INTRODUCTION = """# Measurements

<!-- Written by docs/tools/measurements.py from benchmarks/results; don't edit it. -->

Speed, size and accuracy of qatline, with the command behind each figure. Ratios come from one run with both sides in
turns; absolute times depend on the machine. One section was measured on a GPU:
[TensorRT](#tensorrt-on-a-gpu).
"""


def render() -> str:
    """Return the page."""
    sections = [
        *(accuracy.digits(), accuracy.photographs(), accuracy.detection(), accuracy.segmentation()),
        *(accuracy.recipes(), accuracy.records(), accuracy.agreement()),
        *(accuracy.tensorrt(), accuracy.without_vnni()),
        *(accuracy.ranges(), accuracy.few_bits(), accuracy.calibration(), accuracy.diagnosis()),
        *(cost.openvino(), cost.export(), cost.overhead(), cost.scaling(), cost.steps()),
        *(cost.qat_step(), cost.inference(), cost.reading(), cost.memory(), cost.serving()),
        *(cost.one_call(), cost.ultralytics(), accuracy.faults(), cost.networks()),
    ]
    return "\n".join([INTRODUCTION, *(part for section in sections for part in section)])


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")
