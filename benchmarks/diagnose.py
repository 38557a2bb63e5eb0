"""Whether diagnosis and search find what was planted, and the CPU time of a diagnosis.

    uv run --group bench python benchmarks/diagnose.py --json benchmarks/results/diagnose.json

In each network one channel is made 100 times as large by the normalization or kernel behind a layer,
and divided by 100 in the only layer that reads it: in FP32 nothing changes. It counts as found where
``diagnose`` names that layer, channel and cause first. Then the network as it came is diagnosed with
the defaults, for the CPU seconds; quantization and calibration on 64 images are part of them. With
``--search`` the search is compared with all placements of a small network with two planted channels.
Weights and images are looked for in ``QATLINE_SHARED_DATA``; networks without them are left out.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import ptq_agreement as agreement
import record
from planted_faults import network as small_network
from planted_faults import scale_channel

import qat_lib
from qat_lib.files.journal import Journal
from qat_lib.keras.search.candidates import Candidates
from qat_lib.models import build_reference_model
from qat_lib.models.weights import load_weights
from qat_lib.optimization.metrics import choose_metric
from qat_lib.ptq import PtqRecipe

FACTOR, CHANNEL = 100.0, 5
CALIBRATION = 64
DROPS = (0.3, 0.1, 0.03, 0.01)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network with places for a bad channel.

    Attributes:
        build: makes the model.
        images: makes inputs.
        places: the layer to blame, the one whose weights scale its channel, and the reader.
        weights: file that it needs, if any.
    """

    build: Callable[[], Any]
    images: Callable[[], np.ndarray]
    places: tuple[tuple[str, str, str], ...]
    weights: str = ""


def trained(name: str, side: int, classes: int, weights: str) -> Any:
    """Return a reference network with its trained weights."""
    model = build_reference_model(name, (side, side, 3), classes)
    load_weights(model, agreement.SHARED / weights)
    return model


def small_photographs() -> np.ndarray:
    """Return images of the CIFAR-10 subset as ResNet-20 takes them."""
    with np.load(agreement.SHARED / "cifar10_jpeg_subset.npz", allow_pickle=False) as data:
        return agreement.prepared(data["x_train"][:CALIBRATION])


NETWORKS = {
    "three convolutions": Network(
        build=small_network,
        images=lambda: (
            np.random.default_rng(0).normal(size=(CALIBRATION, 8, 8, 3)).astype(np.float32)
        ),
        places=(("conv1", "conv1", "conv2"), ("depth", "depth", "conv3")),
    ),
    "ResNet-20": Network(
        build=lambda: trained("resnet20_cifar10", 32, 10, "resnet20_cifar10.npz"),
        images=small_photographs,
        places=(
            ("layer1_0_1_conv", "layer1_0_1_bn", "layer1_0_2_conv"),
            ("layer3_2_1_conv", "layer3_2_1_bn", "layer3_2_2_conv"),
        ),
        weights="resnet20_cifar10.npz",
    ),
    "MobileNetV2": Network(
        build=lambda: trained("mobilenetv2_imagenet", 224, 1000, "mobilenetv2_imagenet.npz"),
        images=lambda: agreement.mixed("x_train", CALIBRATION, 0),
        places=(
            ("features_1_conv_1", "features_1_conv_2", "features_2_conv_0_0"),
            ("features_17_conv_2", "features_17_conv_3", "features_18_0"),
        ),
        weights="mobilenetv2_imagenet.npz",
    ),
}


def plant(model: Any, scaled: str, reader: str) -> None:
    """Scale a channel where it is made, and divide it out where it is read."""
    layer = model.get_layer(scaled)
    if not isinstance(layer, keras.layers.BatchNormalization):
        scale_channel(model, scaled, reader, CHANNEL, FACTOR)
        return
    gamma, beta, mean, variance = layer.get_weights()
    gamma[CHANNEL] *= FACTOR
    beta[CHANNEL] *= FACTOR
    layer.set_weights([gamma, beta, mean, variance])
    kernel, *rest = model.get_layer(reader).get_weights()
    kernel[:, :, CHANNEL, :] /= FACTOR
    model.get_layer(reader).set_weights([kernel, *rest])


def found_first(network: Network, images: np.ndarray, place: tuple[str, str, str]) -> bool:
    """Plant a channel in a place; return whether it is the first that is named."""
    blamed, scaled, reader = place
    model = network.build()
    plant(model, scaled, reader)
    findings = qat_lib.diagnose(model, images, samples=16, layers=6).findings
    if not findings:
        return False
    first = findings[0]
    expected = (blamed, "outlier channel", (CHANNEL,))
    return (first.layer, first.cause, first.channels) == expected


def diagnosed(name: str, network: Network) -> dict[str, Any]:
    """Return what was found in a network, and the CPU seconds of its diagnosis."""
    images = network.images()
    places = {}
    for place in network.places:
        places[place[0]] = found_first(network, images, place)
        print(f"{name}: planted in {place[0]}, named first: {places[place[0]]}", flush=True)
    model = network.build()
    started = time.process_time()
    result = qat_lib.diagnose(model, images)
    seconds = time.process_time() - started
    print(f"{name}: {len(result.layers)} layers in {seconds:.1f} CPU s", flush=True)
    return {
        "planted": places,
        "layers": len(result.layers),
        "samples": result.samples,
        "cpu_seconds": seconds,
    }


def searched() -> list[dict[str, Any]]:
    """Return the layers that search leaves in float, and the fewest of all placements."""
    inputs = np.random.default_rng(0).normal(size=(64, 8, 8, 3)).astype(np.float32)
    model, recipe = small_network(1), PtqRecipe(equalize=False)
    scale_channel(model, "conv1", "conv2", 3, FACTOR)
    scale_channel(model, "depth", "conv3", 5, FACTOR)
    candidates = Candidates(
        model,
        inputs,
        inputs,
        recipe=recipe,
        base=qat_lib.QuantizationSpec(),
        journal=Journal(None, ""),
    )
    _, metric = choose_metric(candidates.reference, None, "fidelity")
    drops: dict[frozenset[str], float] = {}
    for size in range(len(candidates.layers) + 1):
        for floats in map(frozenset, combinations(candidates.layers, size)):
            drops[floats] = 1.0 - candidates.value(floats, metric)
    rows = []
    for bound in DROPS:
        least = min(len(floats) for floats, drop in drops.items() if drop <= bound)
        result = qat_lib.search(
            model, inputs, max_drop=bound, metric="fidelity", recipe=recipe, backend=None
        )
        rows.append(
            {
                "max_drop": bound,
                "placements": len(drops),
                "tried": result.evaluations,
                "fewest": least,
                "found": len(result.floats),
                "drop": result.drop,
            }
        )
        print(f"search: {rows[-1]}", flush=True)
    return rows


def main() -> None:
    """Plant, diagnose and search, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--search", action="store_true", help="compare search as well")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"factor": FACTOR, "calibration": CALIBRATION, "networks": {}}
    for name in arguments.networks:
        network = NETWORKS[name]
        if network.weights and not (agreement.SHARED / network.weights).is_file():
            print(f"{name}: skipped, there is no {network.weights} in {agreement.SHARED}")
            continue
        figures["networks"][name] = diagnosed(name, network)
        if arguments.json:
            record.write(arguments.json, figures)
    if arguments.search:
        figures["search"] = searched()
        if arguments.json:
            record.write(arguments.json, figures)


if __name__ == "__main__":
    main()
