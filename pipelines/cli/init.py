"""``qatline init``: a project with a model and a task of one's own, which runs as generated."""

from __future__ import annotations

from pathlib import Path
from string import Template

from qat_lib.errors import ConfigError
from qat_lib.files.whole_files import folder_beside, sync_tree

_CONFIG = """\
# Run it in this folder:
#
#     qatline check --config qatline.yaml
#     qatline run --config qatline.yaml
#
# `qatline config show --config qatline.yaml` prints every key with its value.

data:
  kind: python
  name: project:images # replace the function by your data, or choose another data.kind
  fingerprint: "1" # change it whenever the function returns other data
  calibration_samples: 64

task: { name: "project:Levels" }

model: { name: "project:network" }

training: { epochs: 5, batch_size: 32, learning_rate: 2.0e-3, augment: none }
qat: { epochs: 1, batch_size: 32 }

engine: { benchmark_seconds: 0.2 }
"""

_PROJECT = '''\
"""Data, network and task of this project."""

import keras
import numpy as np
from keras import layers

from qatline.components.tasks import Metric
from qatline.components.tasks.classification import Classification

CLASSES = ("dark", "medium", "bright")


class Levels(Classification):
    """Classification with a further metric: the share of answers at most one class away."""

    name = "project:Levels"

    @property
    def metrics(self):
        """Add the metric after the accuracy."""
        accuracy, *others = super().metrics
        return (accuracy, Metric(name="near", title="one class away at most", share=True), *others)

    def measure(self, outputs, targets):
        """Add the statistics of each sample."""
        near = abs(outputs.argmax(axis=-1) - targets) <= 1
        return {**super().measure(outputs, targets), "near": near.astype(float)}


def images(samples=600, seed=0):
    """Return noisy images (16, 16, 1) of three brightness levels, and their labels."""
    generator = np.random.default_rng(seed)
    labels = np.arange(samples) % len(CLASSES)
    x = generator.normal(labels[:, None, None, None], 0.5, (samples, 16, 16, 1))
    return {"train": (x.astype(np.float32), labels), "classes": list(CLASSES)}


def network(input_shape, classes, width=32):
    """Return a small convolutional network with one logit per class."""
    x = inputs = keras.Input(input_shape)
    for stride in (2, 1, 1):
        x = layers.Conv2D(width, 3, strides=stride, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(classes, name="logits")(x))
'''

_TEST = """\
import numpy as np
from project import CLASSES, Levels, images, network

from qatline.components.tasks import task_for
from qatline.components.testing import check_task


def test_network_has_a_logit_per_class():
    x, _ = images(samples=6)["train"]
    assert network(x.shape[1:], len(CLASSES))(x).shape == (6, len(CLASSES))


def test_task_fulfils_the_interface():
    targets = images(samples=60)["train"][1]
    outputs = 4 * np.eye(len(CLASSES), dtype=np.float32)[targets]
    task = task_for(Levels.name, classes=CLASSES)
    check_task(task, outputs, targets)
    assert task.summarize(task.measure(outputs, targets))["near"] == 1
"""

_PYTEST = """\
[tool.pytest.ini_options]
pythonpath = ["."]
"""

_WORKFLOW = """\
name: qatline
on: [push, pull_request]
jobs:
  check:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: { python-version: "3.12" }
      - run: pip install 'qatline[pipeline,keras,engine,data]' pytest
      - run: pytest
      - run: qatline check --config qatline.yaml
      - run: qatline run --config qatline.yaml --accept-rejected
"""

_SCHEDULE = """\
#!/bin/sh
# Print a crontab line and a systemd timer that retrain every night at two.
# A run without new data, code or settings ends early.
exec qatline schedule --local --cron "0 2 * * *" --config qatline.yaml --set registry.name=$name
"""

_FILES = {
    "qatline.yaml": _CONFIG,
    "project.py": _PROJECT,
    "test_project.py": _TEST,
    "pyproject.toml": _PYTEST,
    ".gitignore": "/runs/\n__pycache__/\n",
    ".github/workflows/qatline.yml": _WORKFLOW,
    "schedule.sh": _SCHEDULE,
}


def create_project(folder: Path) -> list[str]:
    """Write a project into a new or empty folder; return the names of its files.

    Raises:
        ConfigError: the folder is not empty, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"Expected a new or empty folder. Received: {folder}, which is a file.")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"Expected a new or empty folder. Received: {folder}, which contains "
            f"{min(each.name for each in folder.iterdir())}. Choose another folder."
        )
    target = folder.absolute()
    # Written beside the folder and moved: an interrupted command leaves no half project.
    with folder_beside(target) as work:
        for name, text in _FILES.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(text).safe_substitute(name=_model_name(target)))
        (work / "schedule.sh").chmod(0o755)
        sync_tree(work)
        if target.exists():  # possibly the working directory, which must stay the same folder
            for path in work.iterdir():
                path.replace(target / path.name)
        else:
            work.replace(target)
    return list(_FILES)


def _model_name(folder: Path) -> str:
    """Return the folder's name as the name of a registered model."""
    name = "".join(each if each.isalnum() or each in "-_" else "-" for each in folder.name)
    return name.strip("-_") or "model"
