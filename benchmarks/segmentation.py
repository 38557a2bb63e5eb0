"""INT8 of a U-Net on street scenes: PTQ, QAT and NNCF against FP32.

    uv run --group bench python benchmarks/segmentation.py --json benchmarks/results/segmentation.json

The network is ``examples/tasks/mobilenet_networks.py:segmenter`` with ImageNet weights, the data the
folder ``camvid`` in ``QATLINE_SHARED_DATA``. Images and masks are resized to ``--size``; the mean
IoU is that of the resized masks. ``task_quality.py`` describes the measurement.
"""

from __future__ import annotations

import argparse
import sys

import task_quality
from task_quality import Study, Variant

from qatline.components.settings import TaskSettings


def study(arguments: argparse.Namespace) -> Study:
    """Return the segmenter's study."""
    import mobilenet_networks

    classes = ("sky", "building", "pole", "road", "pavement", "tree")
    classes += ("sign", "fence", "car", "pedestrian", "bicyclist")
    path = str(task_quality.SHARED / "camvid")
    return Study(
        data={"kind": "masks", "path": path, "classes": list(classes)},
        build=mobilenet_networks.segmenter,
        task=TaskSettings(name="segmentation", options={"ignore_index": len(classes)}),
        metric="mean_iou",
        variants={
            "": Variant(float_outputs=False),
            "float output layer": Variant(float_outputs=True),
            "untied concatenations": Variant(float_outputs=False, tied=False),
        },
        augment="flip",
    )


if __name__ == "__main__":
    defaults = {"size": [192, 256], "epochs": 40, "qat_epochs": 8}
    sys.exit(task_quality.run(study, __doc__ or "", "camvid", **defaults))
