"""The steps that make models, with PyTorch: what they leave, and that a seed decides it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qat_lib.support.extras import missing_packages
from qatline.components.artifacts import Baseline, FineTuned, Quantized
from qatline.components.settings import (
    EngineSettings,
    ExportSettings,
    ModelSettings,
    QATSettings,
    QuantizationSettings,
    TrainingSettings,
)
from qatline.components.store.manifest import describe
from qatline.components.support.events import NullProgress

pytestmark = pytest.mark.skipif(
    bool(missing_packages(["torch", "onnxscript"])), reason="needs qatline[torch]"
)
MODEL = ModelSettings(framework="torch", name="torch_steps_network:build")
SOURCE = """
from torch import nn

def build(channels, classes):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(144, classes)
    )
"""


def make_steps(dataset: Path, folder: Path) -> None:
    """Run the three steps into the folders baseline, ptq and qat."""
    from qatline.components.steps.finetune_qat import finetune_qat_step
    from qatline.components.steps.quantize_model import quantize_model_step
    from qatline.components.steps.train_baseline import train_baseline_step

    for name in ("baseline", "ptq", "qat"):
        (folder / name).mkdir(parents=True)
    baseline, ptq, qat = (folder / name for name in ("baseline", "ptq", "qat"))
    progress = NullProgress()
    training = TrainingSettings(epochs=4, learning_rate=2e-2)
    train_baseline_step(
        dataset, baseline, model=MODEL, training=training, seed=3, progress=progress
    )
    quantize_model_step(
        dataset,
        baseline,
        ptq,
        quantization=QuantizationSettings(),
        export=ExportSettings(),
        engine=EngineSettings(backend="openvino"),
        seed=3,
        progress=progress,
    )
    tuning = QATSettings(epochs=1)
    finetune_qat_step(dataset, baseline, ptq, qat, qat=tuning, seed=3, progress=progress)


@pytest.fixture(scope="module")
def made(digits_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch-steps")
    with pytest.MonkeyPatch.context() as patch:
        (folder / "torch_steps_network.py").write_text(SOURCE)
        patch.syspath_prepend(folder)
        make_steps(digits_dataset, folder / "first")
        make_steps(digits_dataset, folder / "second")
    return folder


@pytest.mark.matrix
def test_a_seed_decides_everything(made: Path) -> None:
    for name in ("baseline", "ptq", "qat"):
        first, second = (describe(made / run / name).digest for run in ("first", "second"))
        assert first == second, name


def test_a_pytorch_baseline_learns(made: Path) -> None:
    baseline = Baseline(made / "first" / "baseline")
    assert baseline.framework == "torch"
    assert baseline.test_value("accuracy") > 0.5
    assert [row.epoch for row in baseline.history()] == [1, 2, 3, 4]
    info = baseline.info()
    assert (info.name, info.framework, info.probabilities) == ("build", "torch", False)
    assert info.parameters == 4 * 9 + 4 + 144 * 10 + 10
    assert np.isfinite(baseline.predictions()).all()


def test_a_pytorch_model_gets_its_ranges_from_calibration(made: Path) -> None:
    ptq, qat = Quantized(made / "first" / "ptq"), FineTuned(made / "first" / "qat")
    before, after = ptq.ranges(), qat.ranges()
    activations = {name for name, item in before.items() if item.kind == "activation"}
    assert activations
    for name in activations:
        assert 0 < before[name].amax <= before[name].observed_max
        assert after[name].amax == before[name].amax  # frozen
    kept = json.loads((qat.path / "metrics.json").read_text())["kept_epoch"]
    assert [row.epoch for row in qat.history() if row.kept] == [kept]
