"""INT8 of a detector on photographs of blood cells: PTQ, QAT and NNCF against FP32.

    uv run --group bench python benchmarks/detection.py --json benchmarks/results/detection.json

The network is ``examples/tasks/mobilenet_networks.py:detector`` with ImageNet weights, the data the
folder ``bccd`` in ``QATLINE_SHARED_DATA``. All average precisions count boxes from the score
``--score`` on. ``task_quality.py`` describes the measurement.
"""

from __future__ import annotations

import argparse
import sys

import task_quality
from task_quality import Study, Variant

from qatline.components.settings import TaskSettings


def study(arguments: argparse.Namespace) -> Study:
    """Return the detector's study."""
    import mobilenet_networks

    return Study(
        data={"kind": "coco", "path": str(task_quality.SHARED / "bccd")},
        build=mobilenet_networks.detector,
        task=TaskSettings(name="detection", options={"score_threshold": arguments.score}),
        metric="map",
        variants={
            "": Variant(float_outputs=True),
            "quantized output layers": Variant(float_outputs=False),
            "untied concatenations": Variant(float_outputs=True, tied=False),
        },
        augment="flip",
        about={"score_threshold": arguments.score},
    )


if __name__ == "__main__":
    defaults = {"size": [192, 256], "epochs": 40, "qat_epochs": 8}
    sys.exit(task_quality.run(study, __doc__ or "", "bccd", **defaults))
