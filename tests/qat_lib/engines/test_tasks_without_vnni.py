"""INT8 engines for many tasks on a CPU without VNNI: as exact as their graphs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import qat_lib

layers = keras.layers


def _features(x: Any, widths: tuple[int, ...] = (16, 24)) -> Any:
    for width in widths:
        x = layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return x


def regression() -> Any:
    x = layers.GlobalAveragePooling2D()(_features(image := keras.Input((32, 32, 3), name="x")))
    return keras.Model(image, layers.Dense(1)(layers.Dense(16, activation="relu")(x)))


def several_labels() -> Any:
    x = layers.Flatten()(_features(image := keras.Input((32, 32, 3), name="x")))
    return keras.Model(image, layers.Dense(6, activation="sigmoid")(x))


def two_inputs() -> Any:
    image, facts = keras.Input((32, 32, 3), name="x"), keras.Input((12,), name="facts")
    x = layers.GlobalAveragePooling2D()(_features(image))
    x = layers.Concatenate()([x, layers.Dense(16, activation="relu")(facts)])
    return keras.Model([image, facts], layers.Dense(5)(x))


def series() -> Any:
    x = signal = keras.Input((64, 4), name="x")
    for width in (16, 32):
        x = layers.Conv1D(width, 5, padding="same", activation="relu")(x)
        x = layers.MaxPooling1D(2)(x)
    return keras.Model(signal, layers.Dense(5)(layers.GlobalMaxPooling1D()(x)))


def centers() -> Any:
    x = _features(image := keras.Input((32, 32, 3), name="x"))
    x = layers.Conv2DTranspose(16, 4, strides=2, padding="same", activation="relu")(x)
    heat = layers.Conv2D(3, 1, activation="sigmoid", name="heat")(x)
    return keras.Model(image, [heat, layers.Conv2D(2, 1, name="sizes")(x)])


def detector() -> Any:
    near = _features(image := keras.Input((32, 32, 3), name="x"))
    far = layers.DepthwiseConv2D(3, strides=2, padding="same", activation="relu")(near)
    boxes, classes = [], []
    for x in (near, layers.Conv2D(24, 1, activation="relu")(far)):
        boxes.append(layers.Reshape((-1, 4))(layers.Conv2D(8, 3, padding="same")(x)))
        classes.append(layers.Reshape((-1, 3))(layers.Conv2D(6, 3, padding="same")(x)))
    return keras.Model(image, [layers.Concatenate(1)(boxes), layers.Concatenate(1)(classes)])


def segmenter() -> Any:
    image = keras.Input((32, 32, 3), name="x")
    fine = layers.Conv2D(12, 3, padding="same", activation="relu")(image)
    x = layers.UpSampling2D()(_features(layers.MaxPooling2D()(fine), (16,)))
    x = layers.Concatenate()([fine, layers.UpSampling2D()(x)])
    x = layers.Conv2D(12, 3, padding="same", activation="relu")(x)
    return keras.Model(image, layers.Conv2D(4, 1)(x))


TASKS: tuple[Callable[[], Any], ...] = (
    *(regression, several_labels, two_inputs, series, centers, detector, segmenter),
)
PROGRAM = """
import json, sys
import numpy as np
from pathlib import Path
from qat_lib.engines import BuildSpec, build_engine, cpu_kind, load_engine
from qat_lib.engines.onnxruntime import Reference
assert cpu_kind() == "avx2"
found = []
for folder in map(Path, json.load(sys.stdin)):
    artifact = build_engine(folder / "q.onnx", BuildSpec(backend="openvino", max_batch_size=16))
    with np.load(folder / "x.npz") as data:
        batch = dict(data)
    with load_engine(artifact.path) as engine:
        answers = engine.infer(batch)
    exact, fp32 = (Reference(folder / name).run(batch) for name in ("q.onnx", "fp32.onnx"))
    def decibels(these):
        noise = [np.mean((these[k] - fp32[k]) ** 2) / np.var(fp32[k]) for k in fp32]
        return float(-10 * np.log10(max(noise)))
    found.append({
        "engine": decibels(answers),
        "exact": decibels(exact),
        "int8": artifact.manifest.precision.int8_layers,
        "warnings": list(artifact.warnings),
    })
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Figures of an engine for each task, built as on a CPU without VNNI."""
    pytest.importorskip("openvino")
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("sums of 16 bits are x86's")
    folders = []
    for task in TASKS:
        keras.utils.set_random_seed(0)
        model, folder = task(), tmp_path_factory.mktemp(task.__name__)
        # Positive inputs, like pixels: they reach the largest sums.
        rng = np.random.default_rng(0)
        data = {
            i.name: rng.uniform(0, 1, (16, *i.shape[1:])).astype("float32") for i in model.inputs
        }
        inputs: Any = data if len(data) > 1 else next(iter(data.values()))
        quantized = qat_lib.PtqRecipe(backend="openvino", cpu="avx2").quantize(model, inputs)
        qat_lib.export_onnx(model, folder / "fp32.onnx", target="openvino")
        qat_lib.export_onnx(quantized, folder / "q.onnx", target="openvino")
        np.savez(folder / "x.npz", **data)
        folders.append(str(folder))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(folders),
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip((task.__name__ for task in TASKS), json.loads(done.stdout), strict=True))


@pytest.mark.matrix
@pytest.mark.parametrize("task", [task.__name__ for task in TASKS])
def test_engine_is_as_exact_as_its_graph(task: str, engines: dict[str, dict[str, Any]]) -> None:
    found = engines[task]
    # The first convolution of an image or a series of few channels stays in float on such CPUs.
    assert found["int8"] >= 2
    assert found["warnings"] == []
    assert found["exact"] > 20
    assert found["engine"] > found["exact"] - 1
