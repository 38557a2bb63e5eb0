"""CPU time of calibration against forward passes over the same data.

    uv run --group bench python benchmarks/calibration_cost.py --json benchmarks/results/calibration_cost.json

Each turn runs the float model over the data, batch after batch, then ``predict`` with a new graph
and with the graph of its last call, then ``calibrate`` on the quantized model, which makes a graph
each time; the figures are medians over the turns, and of each turn's ratio. MobileNetV2 has its
ImageNet weights where ``QATLINE_SHARED_DATA`` holds them; ResNet-50 has random ones, which cost as
much. The images are noise.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import record
from applications_images import SHARED

BATCH = 32


def mobilenet() -> Any:
    """Return MobileNetV2, trained where its weights are there."""
    from qat_lib.models import mobilenetv2_imagenet
    from qat_lib.models.weights import load_weights

    model = mobilenetv2_imagenet()
    if (weights := SHARED / "mobilenetv2_imagenet.npz").is_file():
        load_weights(model, weights)
    return model


def resnet() -> Any:
    """Return ResNet-50 with random weights."""
    import keras

    return keras.applications.ResNet50(weights=None, input_shape=(96, 96, 3))


NETWORKS: dict[str, tuple[Callable[[], Any], int]] = {
    "MobileNetV2": (mobilenet, 224),
    "ResNet50": (resnet, 96),
}


def ways(model: Any, images: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Return what is compared, each over all images."""
    import tensorflow as tf

    import qat_lib

    quantized = qat_lib.quantize_model(model, custom_qdq_cases="auto", unsigned=True)

    def forward() -> None:
        for start in range(0, len(images), BATCH):
            model(tf.convert_to_tensor(images[start : start + BATCH]), training=False)

    def predict_anew() -> None:
        model.make_predict_function(force=True)
        model.predict(images, batch_size=BATCH, verbose=0)

    return {
        "forward": forward,
        "predict_anew": predict_anew,
        "predict": lambda: model.predict(images, batch_size=BATCH, verbose=0),
        "calibrate": lambda: qat_lib.calibrate(quantized, images, batch_size=BATCH),
    }


def measure(runs: dict[str, Callable[[], Any]], turns: int) -> dict[str, Any]:
    """Return the medians of CPU seconds and of the ratios, over the turns."""
    runs["predict"]()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            started = time.process_time()
            run()
            seconds[name].append(time.process_time() - started)
    found: dict[str, Any] = {}
    for name, values in seconds.items():
        ratios = np.asarray(seconds["calibrate"]) / values
        found[name] = {"cpu_seconds": float(np.median(values)), "ratio": float(np.median(ratios))}
    return found


def main() -> None:
    """Measure each network, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    for name, (build, size) in NETWORKS.items():
        images = np.random.default_rng(0).normal(size=(arguments.images, size, size, 3))
        found = measure(ways(build(), images.astype(np.float32)), arguments.turns)
        rows[name] = {"pixels": size, **found}
        print(
            f"{name:12s} forward {found['forward']['cpu_seconds']:5.1f} CPU s, calibrate "
            f"{found['calibrate']['cpu_seconds']:5.1f}: {found['forward']['ratio']:.2f} times the "
            f"forward passes, {found['predict_anew']['ratio']:.2f} times predict with a new graph, "
            f"{found['predict']['ratio']:.2f} times predict with its last",
            flush=True,
        )
    if arguments.json:
        sizes = {"images": arguments.images, "turns": arguments.turns, "batch": BATCH}
        record.write(arguments.json, {**sizes, "networks": rows})


if __name__ == "__main__":
    main()
