"""Several labels through every step, as a user starts them."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from qatline.pipelines.steps import STEP_ARTIFACTS
from tests.integration.test_torch_job import run

pytestmark = [
    pytest.mark.slow,  # another task runs in test_torch_job.py
    # MLflow's own use of SQLAlchemy 2.1.
    pytest.mark.filterwarnings(
        "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
    ),
]
SOURCE = """
    import keras
    import numpy as np
    from keras import layers
    from sklearn.datasets import load_digits

    def labels():
        # Is the digit even, above four, has it a loop?
        digits = load_digits()
        x = digits.images.astype(np.float32)[..., None] / 16
        names = digits.target
        y = np.stack([names % 2 == 0, names > 4, np.isin(names, (0, 6, 8, 9))], axis=1)
        return {"train": (x, y.astype(np.int64)), "classes": ["even", "large", "loop"]}

    def labeller(input_shape, classes, width=16):
        x = inputs = keras.Input(input_shape)
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        x = layers.Flatten()(layers.MaxPooling2D()(x))
        return keras.Model(inputs, layers.Dense(classes, activation="sigmoid")(x))
"""


def test_engine_of_several_labels_is_promoted(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(textwrap.dedent(SOURCE))
    result = run(
        tmp_path,
        "model.framework=keras",
        "model.name=my_task:labeller",
        "data={kind: python, name: 'my_task:labels', fingerprint: '1'}",
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
    values = {
        name: row["quality"]["mean_average_precision"] for name, row in result["results"].items()
    }
    assert values["fp32"] > 0.97
    assert values["fp32_engine"] == pytest.approx(values["fp32"], abs=0.003)
    assert values["qat_engine"] == pytest.approx(values["fp32"], abs=0.02)
    assert result["results"]["qat_engine"]["int8_layers"] >= 2
    folder = Path(result["run_dir"]) / "artifacts"
    described = json.loads((folder / "dataset" / "dataset.json").read_text())
    assert described["task"] == "multilabel"
    page = Path(result["report"]).read_text(encoding="utf-8")
    assert all(name in page for name in described["classes"])
