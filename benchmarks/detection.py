"""INT8 of a detector on photographs of blood cells: PTQ, QAT and NNCF against FP32.

    uv run --group bench python benchmarks/detection.py --json benchmarks/results/detection.json

The network is ``examples/tasks/mobilenet_networks.py:detector`` with ImageNet weights, the data the
folder ``bccd`` in ``QATLINE_SHARED_DATA``. All average precisions count boxes from the score
``--score`` on. ``task_quality.py`` describes the measurement.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import task_quality
from task_quality import Study, Variant

from qatline.components.settings import TaskSettings


def flip(x: Any, y: Any, seed: Any) -> tuple[Any, Any]:
    """Mirror images and boxes of a batch at random."""
    import tensorflow as tf

    draw = tf.random.stateless_uniform((tf.shape(x)[0],), tf.cast(seed, tf.int32)) < 0.5
    width = tf.cast(tf.shape(x)[2], tf.float32)
    x1, y1, x2, y2, *rest = tf.unstack(y, axis=2)
    mirrored = tf.stack([width - x2, y1, width - x1, y2, *rest], axis=2)
    images = tf.where(draw[:, None, None, None], tf.reverse(x, [2]), x)
    return images, tf.where(draw[:, None, None], mirrored, y)


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
        augment="detection:flip",
        about={"score_threshold": arguments.score},
    )


if __name__ == "__main__":
    defaults = {"size": [192, 256], "epochs": 40, "qat_epochs": 8}
    sys.exit(task_quality.run(study, __doc__ or "", "bccd", **defaults))
