"""Range methods beside one another: each alone, chosen per tensor, and clipped weights.

    uv run --group bench python benchmarks/calibrators.py --json benchmarks/results/calibrators.json

Each network is equalized by ``PtqRecipe``'s rule, quantized and calibrated once; then every method
sets the ranges anew and the biases are corrected, as by default. The images are cut in two halves,
neither of which was calibrated on: KL, the mean divergence of the class probabilities from FP32's,
is given for each, so that a method chosen on one half can be judged on the other. The standard
error is that of the paired difference from the percentile of 99.99, over both. Where there are
labels, accuracy stands beside. The networks run in Keras, whose quantizers compute what the
exported graph does. With ``--json``, rows that the file has of as many images stay.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import calibrators_choice as choice
import numpy as np
import ptq_agreement as agreement
import record
import tensorflow as tf
from qat_recipes_data import CifarData

import qat_lib
from qat_lib.models import build_reference_model
from qat_lib.models.weights import load_weights
from qat_lib.ptq import PtqRecipe

BATCH = 50
REFERENCE = "percentile 99.99"
METHODS: dict[str, tuple[str, float]] = {
    "max": ("max", 100.0),
    "percentile 99.999": ("percentile", 99.999),
    REFERENCE: ("percentile", 99.99),
    "percentile 99.9": ("percentile", 99.9),
    "entropy": ("entropy", 100.0),
    "mse": ("mse", 100.0),
}


CHOSEN, CLIPPED = "auto", f"{REFERENCE}, weights clipped"
ROWS = (*METHODS, CHOSEN, CLIPPED)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A trained network with its images.

    Attributes:
        model: the float model.
        calibration: inputs to calibrate on.
        images: inputs to compare on, none of them calibrated on.
        labels: their classes, or None.
    """

    model: Any
    calibration: np.ndarray
    images: np.ndarray
    labels: np.ndarray | None = None


def cifar(model: Any, side: int, count: int) -> Network:
    """Return a network with test images of the CIFAR-10 subset."""
    path = agreement.SHARED / "cifar10_jpeg_subset.npz"
    data = CifarData(path, 0, side=side, training=1, validation=1, test=count)
    batches = list(data.test().as_numpy_iterator())
    images = np.concatenate([x for x, _ in batches])
    labels = np.concatenate([y for _, y in batches])
    return Network(model=model, calibration=data.calibration()[:256], images=images, labels=labels)


def resnet20(arguments: argparse.Namespace) -> Network:
    """Return ResNet-20 with its published weights."""
    model = build_reference_model("resnet20_cifar10", (32, 32, 3), 10)
    load_weights(model, agreement.SHARED / "resnet20_cifar10.npz")
    return cifar(model, 32, arguments.images)


def mobilenetv2_cifar(arguments: argparse.Namespace) -> Network | None:
    """Return the MobileNetV2 that ``qat_recipes.py`` trained, None without it."""
    path = arguments.work / "mobilenetv2_imagenet_0_control.keras"
    return cifar(qat_lib.load_model(path), 96, arguments.images) if path.is_file() else None


def mobilenetv2(arguments: argparse.Namespace) -> Network:
    """Return MobileNetV2 with ImageNet weights, and the images of ``ptq_agreement.py``."""
    model = build_reference_model("mobilenetv2_imagenet", (224, 224, 3), 1000)
    load_weights(model, agreement.SHARED / "mobilenetv2_imagenet.npz")
    calibration = agreement.mixed("x_train", 200, 0)
    return Network(
        model=model, calibration=calibration, images=agreement.mixed("x_test", arguments.images, 1)
    )


NETWORKS: dict[str, Callable[[argparse.Namespace], Network | None]] = {
    "ResNet-20, CIFAR-10": resnet20,
    "MobileNetV2, CIFAR-10": mobilenetv2_cifar,
    "MobileNetV2, ImageNet": mobilenetv2,
}


def forward(model: Any, images: np.ndarray) -> np.ndarray:
    """Return a model's logits."""
    run = tf.function(lambda x: model(x, training=False))
    parts = []
    for start in range(0, len(images), BATCH):
        parts.append(run(tf.convert_to_tensor(images[start : start + BATCH])).numpy())
    return np.concatenate(parts)


def divergences(logits: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return each image's KL divergence from the reference, in nats."""
    p, q = agreement.probabilities(reference), agreement.probabilities(logits)
    return np.asarray(np.sum(p * (np.log(p + 1e-12) - np.log(q + 1e-12)), axis=1))


class Trial:
    """A network quantized and calibrated once, whose ranges can be set anew.

    Args:
        network: which one.
        unsigned: whether activations that are never negative are unsigned.
        bits: width of the weights but in the first and the last layer.
    """

    def __init__(self, network: Network, *, unsigned: bool, bits: int = 8) -> None:
        self._network = network
        recipe = PtqRecipe(backend="openvino" if unsigned else "tensorrt")
        prepared = recipe.prepare(network.model, network.calibration).model
        spec = None
        if bits < 8:
            weights = recipe.plan(prepared).by_kind("weight")
            layers = [entry.tensor.rpartition("/")[0] for entry in weights]
            spec = qat_lib.QuantizationSpec().add(layers[1:-1], weight_num_bits=bits)
        self.model = qat_lib.apply_plan(prepared, recipe.plan(prepared, spec))
        started = time.process_time()
        self.report = qat_lib.calibrate(self.model, network.calibration)
        print(f"  calibrate: {time.process_time() - started:.1f} CPU s", flush=True)
        self._weights = self.model.get_weights()

    def ranges(self, method: str) -> dict[str, float]:
        """Return each activation's range by a method alone."""
        return choice.ranges_by(self.model, self.report, *METHODS[method])

    def chosen(self) -> dict[str, float]:
        """Return each activation's range by the method ``auto``."""
        started = time.process_time()
        report = qat_lib.calibrate(self.model, self._network.calibration, "auto")
        print(f"  calibrate, auto: {time.process_time() - started:.1f} CPU s", flush=True)
        print(f"  {Counter(tensor.method for tensor in report.tensors.values())}", flush=True)
        return {name: tensor.amax for name, tensor in report.tensors.items()}

    def logits(self, ranges: dict[str, float], *, clip_weights: bool = False) -> np.ndarray:
        """Return the logits with these ranges and corrected biases."""
        self.model.set_weights(self._weights)
        quantizers = choice.quantizers_of(self.model)
        if clip_weights:
            choice.clip_weights(quantizers.values())
        for name, amax in ranges.items():
            quantizers[name].amax = amax
        qat_lib.correct_bias(self.model, self._network.calibration)
        return forward(self.model, self._network.images)


def ways(trial: Trial, rows: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the logits of every method that is asked for, behind those of the reference."""
    yield REFERENCE, trial.logits(trial.ranges(REFERENCE))
    for name in METHODS:
        if name != REFERENCE and name in rows:
            yield name, trial.logits(trial.ranges(name))
    if CHOSEN in rows:
        yield CHOSEN, trial.logits(trial.chosen())
    if CLIPPED in rows:
        yield CLIPPED, trial.logits(trial.ranges(REFERENCE), clip_weights=True)


def few_bits(trial: Trial) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the logits with 4-bit weights, clipped and not."""
    yield "W4", trial.logits(trial.ranges(REFERENCE))
    yield "W4, weights clipped", trial.logits(trial.ranges(REFERENCE), clip_weights=True)


def measured(
    found: Iterator[tuple[str, np.ndarray]], reference: np.ndarray, labels: np.ndarray | None
) -> dict[str, dict[str, float]]:
    """Return the figures of each row, the first of which is what others differ from."""
    rows: dict[str, dict[str, float]] = {}
    first: np.ndarray | None = None
    right: np.ndarray | None = None
    half = len(reference) // 2
    for name, logits in found:
        kl = divergences(logits, reference)
        first = kl if first is None else first
        row = {
            "kl": float(kl.mean()),
            "kl_first_half": float(kl[:half].mean()),
            "kl_second_half": float(kl[half:].mean()),
            "difference": float((kl - first).mean()),
            "difference_error": float((kl - first).std() / len(kl) ** 0.5),
            "agreement": float(100 * np.mean(logits.argmax(1) == reference.argmax(1))),
        }
        if labels is not None:
            right = (logits.argmax(1) == labels).astype(float)
            loss = right - (reference.argmax(1) == labels)
            row["accuracy"] = float(100 * right.mean())
            row["points"] = float(100 * loss.mean())
            row["points_error"] = float(100 * loss.std() / len(loss) ** 0.5)
        rows[name] = row
        print(f"  {name:36s}", *(f"{key} {value:.4f}" for key, value in row.items()), flush=True)
    return rows


def main() -> None:
    """Try every method on every network, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--images", type=int, default=2000, help="at most")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--few-bits", action="store_true", help="with 4-bit weights as well")
    parser.add_argument("--work", type=Path, default=Path("runs") / "qat_recipes")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    if arguments.json and arguments.json.exists():  # rows that were measured before stay
        results = json.loads(arguments.json.read_text())["networks"]
    for name in arguments.networks:
        network = NETWORKS[name](arguments)
        if network is None:
            print(f"{name}: skipped, there is no trained network in {arguments.work}", flush=True)
            continue
        reference = forward(network.model, network.images)
        sizes = {"calibration": len(network.calibration), "images": len(network.images)}
        if any(results.get(name, {}).get(key) != size for key, size in sizes.items()):
            results[name] = dict(sizes)
        if network.labels is not None:
            hits = np.mean(reference.argmax(1) == network.labels)
            results[name]["fp32_accuracy"] = float(100 * hits)
        for sign in ("unsigned", "signed"):
            print(f"{name}, {sign}", flush=True)
            trial = Trial(network, unsigned=sign == "unsigned")
            rows = measured(ways(trial, arguments.rows), reference, network.labels)
            results[name][sign] = {**results[name].get(sign, {}), **rows}
        if arguments.few_bits:
            print(f"{name}, 4-bit weights", flush=True)
            trial = Trial(network, unsigned=True, bits=4)
            results[name]["4-bit weights"] = measured(few_bits(trial), reference, network.labels)
        if arguments.json:
            record.write(arguments.json, {"networks": results})


if __name__ == "__main__":
    main()
