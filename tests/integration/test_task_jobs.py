"""Several labels in Keras and segmentation in PyTorch through every step, as a user starts them."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from qat_lib.support.extras import missing_packages
from qatline.pipelines.steps import STEP_ARTIFACTS
from tests.integration.test_torch_job import run

pytestmark = [
    pytest.mark.matrix,
    # MLflow's own use of SQLAlchemy 2.1.
    pytest.mark.filterwarnings(
        "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
    ),
]
needs_torch = pytest.mark.skipif(
    bool(missing_packages(["torch", "onnxscript"])), reason="needs qatline[torch]"
)
DATA = """
    import numpy as np
    from sklearn.datasets import load_digits

    def labels():
        # Is the digit even, above four, has it a loop?
        digits = load_digits()
        x = digits.images.astype(np.float32)[..., None] / 16
        names = digits.target
        y = np.stack([names % 2 == 0, names > 4, np.isin(names, (0, 6, 8, 9))], axis=1)
        return {"train": (x, y.astype(np.int64)), "classes": ["even", "large", "loop"]}

    def masks():
        # Ink under noise, weak for every second digit.
        digits = load_digits()
        ink = digits.images > 6
        noise = np.random.default_rng(0).normal(0, 0.25, (*ink.shape, 1))
        x = (ink[..., None] * np.where(digits.target % 2, 0.6, 1.0)[:, None, None, None] + noise)
        kind = np.where(digits.target % 2, 1, 2)[:, None, None]
        y = np.where(ink, kind, 0).astype(np.uint8)
        return {"train": (x.astype(np.float32), y), "classes": ["paper", "pencil", "pen"]}
"""
KERAS = """
    import keras
    from keras import layers

    def labeller(input_shape, classes, width=16):
        x = inputs = keras.Input(input_shape)
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        x = layers.Flatten()(layers.MaxPooling2D()(x))
        return keras.Model(inputs, layers.Dense(classes, activation="sigmoid")(x))
"""
TORCH = """
    import torch
    from torch import nn

    class Segmenter(nn.Module):
        def __init__(self, channels, classes, width=16):
            super().__init__()
            self.fine = nn.Conv2d(channels, width, 3, padding=1)
            self.coarse = nn.Conv2d(width, width, 3, padding=1)
            self.joined = nn.Conv2d(2 * width, width, 3, padding=1)
            self.classes = nn.Conv2d(width, classes, 1)
            self.pool, self.up = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)

        def forward(self, x):
            fine = torch.relu(self.fine(x))
            x = self.up(torch.relu(self.coarse(self.pool(fine))))
            x = torch.relu(self.joined(torch.cat([x, fine], dim=1)))
            return self.classes(x)

    def segmenter(channels, classes):
        return Segmenter(channels, classes)
"""


@pytest.mark.parametrize(
    ("task", "framework", "least"),
    [
        ("multilabel", "keras", 0.97),
        pytest.param("segmentation", "torch", 0.8, marks=needs_torch),
    ],
)
def test_engine_of_a_task_is_promoted(
    tmp_path: Path, task: str, framework: str, least: float
) -> None:
    source = DATA + (KERAS if framework == "keras" else TORCH)
    (tmp_path / "my_task.py").write_text(textwrap.dedent(source))
    data, network = ("labels", "labeller") if task == "multilabel" else ("masks", "segmenter")
    result = run(
        tmp_path,
        f"model.framework={framework}",
        f"model.name=my_task:{network}",
        f"data={{kind: python, name: 'my_task:{data}', fingerprint: '1'}}",
        "training.epochs=12",
        "training.learning_rate=0.005",
        "training.augment=none",
        "qat.epochs=1",
        "engine.backend=openvino",
        "engine.benchmark_seconds=0.1",
        "gate.max_drop=0.02",
    )
    assert [step["name"] for step in result["steps"]] == list(STEP_ARTIFACTS)
    assert result["gate"]["verdict"] == "promote"
    metric = {"multilabel": "mean_average_precision", "segmentation": "mean_iou"}[task]
    values = {name: row["quality"][metric] for name, row in result["results"].items()}
    assert values["fp32"] > least
    assert values["fp32_engine"] == pytest.approx(values["fp32"], abs=0.003)
    assert values["qat_engine"] == pytest.approx(values["fp32"], abs=0.02)
    assert result["results"]["qat_engine"]["int8_layers"] >= 2
    folder = Path(result["run_dir"]) / "artifacts"
    described = json.loads((folder / "dataset" / "dataset.json").read_text())
    assert described["task"] == task
    page = Path(result["report"]).read_text(encoding="utf-8")
    assert all(name in page for name in described["classes"])
