"""Share of wrong engines that the checks of an engine catch.

Faults are planted between an ONNX file and its OpenVINO engine, as a backend that computes wrongly
would make them. Each wrong engine is judged by the build (random requests) and by the check of
engine files (random requests and real inputs), and its accuracy on the same inputs is measured.

    uv run python benchmarks/engine_faults.py --json benchmarks/results/engine_faults.json

``ONEDNN_MAX_CPU_ISA=AVX2`` in front makes OpenVINO compute as on a CPU without VNNI. The networks
are a digits ResNet trained here, ResNet-20 and MobileNetV2 with the weights in
``QATLINE_SHARED_DATA`` (default ``../shared/data``), and EfficientNet-Lite0 with weights from the
Python Package Index (``efficientnet_lite.py``); what is absent is skipped. Accuracy of the last two
is agreement with FP32's labels. That of faults that pass is averaged over dithered copies of the
images, because rounding alone changes some labels.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import efficientnet_lite
import numpy as np
import onnx
import record
from applications_images import SHARED
from wrong_graphs import planted, wrong_graphs

COSTLY = 0.5
"""Points of accuracy from which on a fault must be caught."""


def digits() -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Return a trained network, calibration images, test images and labels."""
    import keras
    import sklearn.datasets

    from qat_lib.models.resnet import resnet_digits

    x, y = sklearn.datasets.load_digits(return_X_y=True)
    images = (x.reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    keras.utils.set_random_seed(0)
    model = resnet_digits(width=16)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss)
    model.fit(images[:1300], y[:1300], epochs=10, batch_size=64, verbose=0)
    return model, images[:256], images[1300:], y[1300:]


def resnet20() -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Return the same of CIFAR ResNet-20."""
    from ptq_agreement import MEAN, SPREAD

    from qat_lib.models import resnet20_cifar10
    from qat_lib.models.weights import load_weights

    model = resnet20_cifar10()
    load_weights(model, SHARED / "resnet20_cifar10.npz")
    with np.load(SHARED / "cifar10_jpeg_subset.npz", allow_pickle=False) as data:
        parts = [(data[key][:512] / 255 - MEAN) / SPREAD for key in ("x_train", "x_test")]
        labels = data["y_test"][:512]
    return model, parts[0].astype(np.float32)[:256], parts[1].astype(np.float32), labels


def photographs(name: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Return the same of a network of ``ptq_agreement``, with FP32's labels as the truth."""
    import ptq_agreement

    network = ptq_agreement.NETWORKS[name]
    usual = {"mean": network.mean, "spread": network.spread}
    images = [ptq_agreement.mixed("x_train", 64, 0, **usual)]
    images.append(ptq_agreement.mixed("x_test", 200, 1, **usual))
    model = network.build()
    return model, *images, model.predict(images[1], batch_size=8, verbose=0).argmax(1)


NETWORKS: dict[str, Callable[[], Any]] = {
    "digits": digits,
    "resnet20": resnet20,
    "mobilenetv2": functools.partial(photographs, "mobilenetv2"),
    "efficientnet_lite0": functools.partial(photographs, "efficientnet_lite0"),
}
BATCH = 8
CHECKED = 96
"""Images of the check; the accuracy is measured on all."""
COPIES = 16
"""Dithered copies of the images for the mean accuracy."""


def measure(name: str, folder: Path, layers: int) -> list[dict[str, Any]]:
    """Return a row for the honest engine of a network and one for each fault."""
    import qat_lib

    model, calibration, images, labels = NETWORKS[name]()
    quantized = qat_lib.PtqRecipe(backend="openvino").quantize(model, calibration)
    path = Path(qat_lib.export_onnx(quantized, folder / "m.onnx", target="openvino").path)
    rows: list[dict[str, Any]] = []
    for fault, wrong in itertools.chain(
        [("honest", None)], wrong_graphs(onnx.load(path), layers=layers)
    ):
        row = judge(path, wrong, fault, images)
        answered = row.pop("labels")
        if not rows:
            honest = float(np.mean(answered == labels))
        change = round(100 * (float(np.mean(answered == labels)) - honest), 2)
        rows.append({"network": name, **row, "change": change})
        if change < -COSTLY and not row["build"] and not row["check"]:
            # Rounding alone changes labels of networks that amplify it, but not their mean.
            means = [mean_accuracy(path, graph, images, labels) for graph in (None, wrong)]
            rows[-1]["single_change"] = change
            rows[-1]["change"] = change = round(100 * (means[1] - means[0]), 2)
        print(
            f"{name:12s} {fault:32s} {change:+7.2f} points  build "
            f"{'refused' if row['build'] else 'passed '}  check "
            f"{'refused' if row['check'] else 'passed '}  {row['difference']:.4f} of {row['bound']:.4f}",
            flush=True,
        )
    return rows


def _remember_references() -> None:
    """Compute each of the reference's answers once: every fault is compared with the same ones."""
    from qat_lib.engines.onnxruntime import Reference

    run, known = Reference.run, {}

    def remembered(self: Any, request: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        key = self._onnx, hashlib.sha256(b"".join(map(bytes, request.values()))).digest()
        if key not in known:
            known[key] = run(self, request)
        return known[key]

    Reference.run = remembered


def judge(path: Path, wrong: Any, fault: str, images: np.ndarray) -> dict[str, Any]:
    """Build an engine, from ``wrong`` where given, and return what the checks say."""
    from qat_lib.engines import BuildSpec, build_engine, load_engine, openvino
    from qat_lib.engines.check import check_engine
    from qat_lib.engines.openvino_forms import sound_form
    from qat_lib.engines.verification import verify_answers
    from qat_lib.errors import EngineBuildError

    openvino.sound_form = planted(wrong) if wrong else sound_form
    spec, engine = BuildSpec(backend="openvino", max_batch_size=BATCH), path.with_suffix(".engine")
    build_engine(path, spec, output=engine, verify=False)
    refused, answers = False, []
    with load_engine(engine) as loaded:
        try:  # as the build does
            verify_answers(loaded, path, half=False)
        except EngineBuildError:
            refused = True
        for start in range(0, len(images), BATCH):
            answers.append(next(iter(loaded.infer(images[start : start + BATCH]).values())))
    check = check_engine(engine, path, requests=8, inputs=images[:CHECKED])
    return {
        "fault": fault,
        "build": refused,
        "check": not check.passed,
        "difference": check.largest_difference,
        "bound": check.bound,
        "labels": np.concatenate(answers).argmax(1),
    }


def mean_accuracy(path: Path, wrong: Any, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the accuracy of an engine over dithered copies of the images."""
    from qat_lib.engines import BuildSpec, build_engine, load_engine, openvino
    from qat_lib.engines.agreement import dithered
    from qat_lib.engines.openvino_forms import sound_form

    openvino.sound_form = planted(wrong) if wrong else sound_form
    spec, engine = BuildSpec(backend="openvino", max_batch_size=BATCH), path.with_suffix(".engine")
    build_engine(path, spec, output=engine, verify=False)
    random, right = np.random.default_rng(0), []
    with load_engine(engine) as loaded:
        for _ in range(COPIES):
            moved = dithered(images, random)
            for start in range(0, len(images), BATCH):
                (answer,) = loaded.infer(moved[start : start + BATCH]).values()
                right.append(answer.argmax(1) == labels[start : start + BATCH])
    return float(np.mean(np.concatenate(right)))


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--layers", type=int, default=8, help="layers that get faults")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    _remember_references()
    rows: list[dict[str, Any]] = []
    for name in arguments.networks:
        if name != "digits" and not SHARED.is_dir():
            print(f"{name} is skipped: there is no {SHARED}.", file=sys.stderr)
            continue
        if name == "efficientnet_lite0" and (missing := efficientnet_lite.missing()):
            print(f"{name} is skipped: install {missing}.", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(name, Path(folder), arguments.layers)
    faults = [row for row in rows if row["fault"] != "honest"]
    caught = [row for row in faults if row["build"] or row["check"]]
    costly = [row for row in faults if row["change"] < -COSTLY]
    summary = {
        "faults": len(faults),
        "caught": len(caught),
        "caught_by_build": sum(row["build"] for row in faults),
        "caught_by_check": sum(row["check"] for row in faults),
        "costly": len(costly),
        "costly_and_passed": sum(not (row["build"] or row["check"]) for row in costly),
        "honest_refused": sum(r["build"] or r["check"] for r in rows if r["fault"] == "honest"),
    }
    print(summary)
    if arguments.json:
        record.write(arguments.json, {**summary, "rows": rows})


if __name__ == "__main__":
    main()
