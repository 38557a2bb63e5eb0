"""Configs with planted mistakes, and the files they name."""

from __future__ import annotations

from pathlib import Path

import numpy as np

MODULE = """
def build(input_shape, classes):
    import keras

    images = keras.Input(input_shape)
    features = keras.layers.Conv2D(4, 3, activation="relu", name="conv1")(images)
    features = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(images, keras.layers.Dense(7, name="logits")(features), name="small")


class NeedsMore:
    def __init__(self, needed): ...
"""

CONFIG = """
data: {kind: npz, path: data.npz, preprocessing: {mean: [0.5, 0.5]}}
model: {name: "planted_mine:build", weights: "s3://models/weights.npz"}
training:
  epocs: 5
  optimizer: adm
  label_smoothing: 2
  callbacks: ["planted_mine:Tell"]
  augment: planted_mine:flipp
  class_weights: {five: 2}
quantization:
  spec: [{name: conv_1, quantize_weight: false}]
  cases:
    - TensorRTQDQCas
    - planted_mine:Caes
    - planted_mine:NeedsMore
    - planted_broken:Case
    - planted_nowhere:Case
  calibrator: percentle
qat: {accumulate_steps: 100}
export: {target: openvino}
engine: {backend: tensorrt}
gate: {min_iou: 0.5, required: 95}
registry: {name: a/b}
tracking: {uri: "http://127.0.0.1:9"}
"""

MISTAKES = (
    ("training.epocs", "did you mean 'training.epochs'?"),
    ("gate.min_iou", "unknown key"),
    ("training.optimizer", "received 'adm'"),
    ("training.label_smoothing", "less than 1.0"),
    ("quantization.calibrator", "received 'percentle'"),
    ("qat", "accumulate_steps: expected at most batch_size=64"),
    ("registry.name", "expected a name without /"),
    ("export.target", "which TensorRT refuses"),
    ("quantization.cases", "Did you mean TensorRTQDQCase?"),
    ("quantization.cases", "the module 'planted_mine' has no 'Caes'"),
    ("quantization.cases", "expected the module 'planted_nowhere'"),
    ("quantization.cases", "No module named 'does_not_exist'"),
    ("quantization.cases", "missing 1 required positional argument"),
    ("training.callbacks", "the module 'planted_mine' has no 'Tell'"),
    ("training.augment", "the module 'planted_mine' has no 'flipp'"),
    ("training.class_weights", "five"),
    ("engine.backend", "The tensorrt backend needs"),
    ("data.path", "validation targets: expected 0 to 3 (4 classes), received 9 for sample 7"),
    ("data.preprocessing", "expected 1 or 3 finite values"),
    ("model.name", "gives outputs of shape (7,)"),
    ("model.weights", "no credentials for S3"),
    ("quantization.spec", "did you mean 'conv1'?"),
    ("gate.required", "received 95. Set 0.95"),
    ("tracking.uri", "can't be reached"),
)
"""Key and a part of the message of each mistake in ``CONFIG``."""

HIDING = """
data: {kind: npz, path: missing.npz}
task: {name: clasification}
model: {name: "planted_absent:build", weights: missing.weights.h5}
quantization: {spec: missing.yaml}
"""
"""A config whose mistakes hide others: without data and model, neither can be looked at."""


def write_planted(folder: Path) -> None:
    """Write the modules and the data."""
    images = np.random.default_rng(0).integers(0, 255, (400, 12, 12, 3), dtype=np.uint8)
    labels = np.arange(400) % 4
    wrong = np.where(np.arange(40) == 7, 9, labels[:40])
    np.savez(
        folder / "data.npz",
        x_train=images,
        y_train=labels,
        x_val=images[:40],
        y_val=wrong,
        x_test=images[:40],
        y_test=labels[:40],
    )
    (folder / "planted_mine.py").write_text(MODULE)
    (folder / "planted_broken.py").write_text("import does_not_exist\n\nclass Case: ...\n")
    (folder / "run.yaml").write_text(CONFIG)
    (folder / "hiding.yaml").write_text(HIDING)
