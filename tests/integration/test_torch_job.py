"""Segmentation with a PyTorch module through every step, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from qat_lib.support.extras import missing_packages
from qatline.pipelines.steps import STEP_ARTIFACTS

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(
        bool(missing_packages(["torch", "onnxscript"])), reason="needs qatline[torch]"
    ),
    # MLflow's own use of SQLAlchemy 2.1.
    pytest.mark.filterwarnings(
        "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
    ),
]
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
CIFAR = SHARED / "cifar10_jpeg_subset.npz"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cifar10_resnet20.yaml"
SOURCE = """
    import numpy as np
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    def masks():
        # Ink under noise, weak for every second digit.
        digits = load_digits()
        ink = digits.images > 6
        noise = np.random.default_rng(0).normal(0, 0.25, (*ink.shape, 1))
        x = (ink[..., None] * np.where(digits.target % 2, 0.6, 1.0)[:, None, None, None] + noise)
        kind = np.where(digits.target % 2, 1, 2)[:, None, None]
        y = np.where(ink, kind, 0).astype(np.uint8)
        return {"train": (x.astype(np.float32), y), "classes": ["paper", "pencil", "pen"]}

    class Segmenter(nn.Module):
        def __init__(self, channels, classes, width=16):
            super().__init__()
            self.fine = nn.Conv2d(channels, width, 3, padding=1)
            self.coarse = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(width)
            self.joined = nn.Conv2d(2 * width, width, 3, padding=1)
            self.classes = nn.Conv2d(width, classes, 1)
            self.pool, self.up = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)

        def forward(self, x):
            fine = torch.relu(self.fine(x))
            pooled = self.pool(fine)
            x = self.up(torch.relu(pooled + self.norm(self.coarse(pooled))))
            x = torch.relu(self.joined(torch.cat([x, fine], dim=1)))
            return self.classes(x)

    def segmenter(channels, classes):
        return Segmenter(channels, classes)
"""


def run(folder: Path, *options: str) -> dict[str, Any]:
    """Run the pipeline in a folder, and return what it says of the run."""
    kept = {}
    for name, value in os.environ.items():
        if not name.startswith(("MLFLOW_", "QATLINE_", "UV")):
            kept[name] = value
    command = [sys.executable, "-m", "qatline.pipelines.cli.main", "run", "--json", "--quiet"]
    # So small a network may be slower in INT8: how long it takes must not decide.
    for option in ("model.framework=torch", "gate.min_speedup=0.01", *options):
        command += ["--set", option]
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


SMALL = (
    "model.name=my_networks:segmenter",
    "data={kind: python, name: 'my_networks:masks', fingerprint: '1'}",
    "training.epochs=12",
    "training.learning_rate=0.005",
    "training.augment=none",
    "qat.epochs=1",
    "engine.backend=openvino",
    "engine.benchmark_seconds=0.1",
    "gate.max_drop=0.02",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch-job")
    (folder / "my_networks.py").write_text(textwrap.dedent(SOURCE))
    return folder


@pytest.fixture(scope="module")
def result(folder: Path) -> dict[str, Any]:
    return run(folder, *SMALL)


def test_a_users_module_is_promoted(result: dict[str, Any]) -> None:
    assert [step["name"] for step in result["steps"]] == list(STEP_ARTIFACTS)
    assert result["gate"]["verdict"] == "promote"
    rows = result["results"]
    assert rows["fp32"]["backend"] == "torch"
    assert rows["qat_engine"]["int8_layers"] == rows["qat_engine"]["weighted_layers"] == 4
    values = {name: row["quality"]["mean_iou"] for name, row in rows.items()}
    assert values["fp32"] > 0.8
    assert values["fp32_engine"] == pytest.approx(values["fp32"], abs=0.003)
    assert values["qat_engine"] == pytest.approx(values["fp32"], abs=0.02)


def test_each_step_leaves_a_state_without_code(result: dict[str, Any]) -> None:
    artifacts = Path(result["run_dir"]) / "artifacts"
    for name in ("baseline", "ptq", "qat"):
        assert (artifacts / name / "model.pt").is_file()
        recipe = json.loads((artifacts / name / "network.json").read_text())
        assert recipe["name"] == "my_networks:segmenter"
    described = json.loads((artifacts / "baseline" / "model.json").read_text())
    assert described["framework"] == "torch"
    exports = json.loads((artifacts / "onnx" / "export.json").read_text())
    assert all(export["parity"]["passed"] for export in exports.values())


def test_report_names_pytorch(result: dict[str, Any]) -> None:
    page = Path(result["report"]).read_text(encoding="utf-8")
    assert "FP32 PyTorch" in page
    assert "Parity with PyTorch" in page
    assert "FP32 Keras" not in page
    assert all(name in page for name in ("paper", "pencil", "pen"))


def test_tracking_holds_the_framework(result: dict[str, Any]) -> None:
    from mlflow import MlflowClient

    tracking = result["tracking"]
    params = MlflowClient(tracking_uri=tracking["uri"]).get_run(tracking["run_id"]).data.params
    assert params["model.framework"] == "torch"


def test_equal_steps_are_reused(folder: Path, result: dict[str, Any]) -> None:
    again = run(folder, *SMALL, "gate.max_drop=0.03")
    reused = [step["name"] for step in again["steps"] if step["status"] == "reused"]
    assert reused == [name for name in STEP_ARTIFACTS if name != "promote"]


@pytest.mark.slow
def test_new_qat_rate_reruns_from_finetune_qat(folder: Path, result: dict[str, Any]) -> None:
    other = run(folder, *SMALL, "qat.learning_rate=1e-4")
    expected = dict.fromkeys(STEP_ARTIFACTS, "executed")
    expected |= dict.fromkeys(("prepare_data", "train_baseline", "quantize_model"), "reused")
    # Where both rates keep the calibrated weights, the same graph comes out, and its engine is
    # built already. It is measured again: the fine-tuning's control is evaluated beside it.
    graphs = []
    for made in (result, other):
        graphs.append(Path(made["run_dir"], "artifacts", "onnx", "qat.onnx").read_bytes())
    if graphs[0] == graphs[1]:
        expected["build_engine"] = "reused"
    assert {step["name"]: step["status"] for step in other["steps"]} == expected


@pytest.mark.slow
@pytest.mark.skipif(not CIFAR.is_file(), reason=f"needs {CIFAR.name} in {SHARED.name}")
def test_resnet20_keeps_its_accuracy(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        "model.name=resnet20_cifar10",
        f"model.weights={SHARED / 'resnet20_cifar10.npz'}",
        f"data={{kind: npz, path: {CIFAR}, calibration_samples: 512}}",
        f"data.preprocessing={PREPROCESSING}",
        "qat={epochs: 1, learning_rate: 1.0e-4, augment: flip_crop}",
        "engine.benchmark_seconds=0.5",
    )
    rows = result["results"]
    assert rows["fp32"]["quality"]["accuracy"] == pytest.approx(0.81, abs=0.02)
    assert rows["ptq_engine"]["quality"]["accuracy"] >= rows["fp32"]["quality"]["accuracy"] - 0.01
    assert rows["qat_engine"]["quality"]["accuracy"] >= rows["fp32"]["quality"]["accuracy"]
    assert rows["qat_engine"]["int8_layers"] == rows["qat_engine"]["weighted_layers"]


PREPROCESSING = (
    "{scale: 0.00392156862745098, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}"
)
