"""Quantize, export and verify every network of keras.applications, and compare it with Keras.

    uv run python benchmarks/export_zoo.py                # all; about an hour on 2 cores
    uv run python benchmarks/export_zoo.py ResNet50 VGG16

Networks have random weights, random BatchNormalization statistics (negative gammas included) and small images where
they allow that; labels and differences are over ``--samples`` random images, or over the images of an ``.npz`` file
(``x_test``, uint8, resized) with ``--images``. A line for each network; the exit code is 1 when one of them fails.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

NOT_NETWORKS = {"Model"}
LEAST_SIZE = {"InceptionV3": 96, "InceptionResNetV2": 96, "Xception": 96}


def builders() -> list[str]:
    """Return the names of all network builders of keras.applications."""
    import keras

    found = [n for n, f in inspect.getmembers(keras.applications) if inspect.isfunction(f) and n[0].isupper()]
    return [n for n in found if n not in NOT_NETWORKS]


def build(name: str, size: int) -> tuple[Any, int]:
    """Build a network for images of ``size`` pixels, or of 224 or more where it takes no other."""
    import keras

    builder = getattr(keras.applications, name)
    for side in (LEAST_SIZE.get(name, size), 224, 331):
        try:
            return builder(weights=None, input_shape=(side, side, 3)), side
        except ValueError:
            continue
    raise ValueError(f"{name} takes none of the image sizes that were tried.")


def stir(model: Any, rng: np.random.Generator) -> None:
    """Give BatchNormalization layers statistics of their own, so that folding them is no identity."""
    import keras

    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            n = layer.moving_mean.shape[0]
            layer.moving_mean.assign(rng.normal(0, 0.1, n))
            layer.moving_variance.assign(rng.uniform(0.5, 1.5, n))
            if layer.scale:
                layer.gamma.assign(rng.uniform(0.5, 1.5, n) * rng.choice([1, 1, 1, -1], n))
            if layer.center:
                layer.beta.assign(rng.normal(0, 0.2, n))


def images_for(model: Any, side: int, count: int, source: Path | None) -> np.ndarray:
    """Return images in the range that the network expects: pixels where it rescales itself, else -1 to 1."""
    import keras

    rescales = any(isinstance(layer, keras.layers.Rescaling | keras.layers.Normalization) for layer in model.layers)
    if source is None:
        pixels = np.random.default_rng(1).uniform(0, 255, (count, side, side, 3)).astype(np.float32)
    else:
        raw = np.load(source)["x_test"][:count].astype(np.float32)
        pixels = np.asarray(keras.ops.image.resize(raw, (side, side)), np.float32)
    return pixels if rescales else pixels / 127.5 - 1


def examine(name: str, arguments: argparse.Namespace, folder: Path) -> bool:
    """Export one network in float and in INT8, print a line for each, and say whether both are right."""
    import keras
    import onnx

    import qat_lib

    keras.utils.clear_session(free_memory=True)
    gc.collect()
    keras.utils.set_random_seed(0)
    model, side = build(name, arguments.size)
    stir(model, np.random.default_rng(0))
    x = images_for(model, side, arguments.samples, arguments.images)
    good = True
    for kind in ("fp32", "int8"):
        plan = None
        network = model
        if kind == "int8":
            plan = qat_lib.plan_quantization(model, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])
            network = qat_lib.apply_plan(model, plan)
            qat_lib.calibrate(network, x[:8], method="max", batch_size=4)
        path = folder / f"{kind}.onnx"
        report = qat_lib.export_onnx(network, path, plan=plan)
        parity = qat_lib.check_parity(network, path, x, batch_size=8)
        fusion = qat_lib.analyze_onnx(path)
        found = Counter(finding.severity for finding in fusion.findings)
        transposes = sum(n.op_type == "Transpose" for n in onnx.load(path, load_external_data=False).graph.node)
        good &= parity.passed and not found["error"]
        print(
            f"{name:20s} {side:3d} px {kind}: {report.seconds:5.1f} s, {report.bytes / 1e6:6.1f} MB, "
            f"{report.quantizers:3d} quantizers, {transposes} transposes, "
            f"labels {parity.labels_equal}/{parity.samples} (ties {parity.ties}), "
            f"difference {parity.largest_difference:.2e} of {parity.magnitude:.2e}, "
            f"analysis {found['error']} errors {found['warning']} warnings, {'ok' if good else 'FAILED'}",
            flush=True,
        )
    return good


def main() -> None:
    """Examine the networks named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--images", type=Path)
    arguments = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.networks or builders():
            try:
                good = examine(name, arguments, Path(folder))
            except Exception as error:  # noqa: BLE001 - one network's failure must not hide the others
                print(f"{name:20s} {type(error).__name__}: {str(error)[:400]}", flush=True)
                good = False
            if not good:
                failed.append(name)
    print(f"failed: {', '.join(failed) or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
