"""The example's detector on photographs of blood cells, from COCO files to a calibrated network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qatline.components.artifacts import Baseline, Quantized
from qatline.components.settings import (
    DataSettings,
    EngineSettings,
    ExportSettings,
    ModelSettings,
    QuantizationSettings,
    TrainingSettings,
)
from qatline.components.support.events import NullProgress

ROOT = Path(__file__).parents[3]
PHOTOGRAPHS = Path(os.environ.get("QATLINE_SHARED_DATA", ROOT.parent / "shared" / "data")) / "bccd"


@pytest.mark.slow
@pytest.mark.skipif(not PHOTOGRAPHS.is_dir(), reason="no photographs in ../shared/data/bccd")
def test_detector_finds_cells_in_int8_as_in_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qatline.components.steps.prepare_data import prepare_data_step
    from qatline.components.steps.quantize_model import quantize_model_step
    from qatline.components.steps.train_baseline import train_baseline_step

    monkeypatch.syspath_prepend(ROOT / "examples" / "tasks")
    data, baseline, ptq = (tmp_path / name for name in ("data", "baseline", "ptq"))
    for folder in (data, baseline, ptq):
        folder.mkdir()
    source = DataSettings(
        kind="coco", path=str(PHOTOGRAPHS), image_size=(64, 80), calibration_samples=32
    )
    prepare_data_step(data, data=source, seed=0, progress=NullProgress())
    found = train_baseline_step(
        data,
        baseline,
        model=ModelSettings(name="networks:detector"),
        training=TrainingSettings(epochs=20, batch_size=8, learning_rate=2e-3, augment="none"),
        seed=0,
        progress=NullProgress(),
    )
    assert found["test_map"] > 0.2
    quantized = quantize_model_step(
        data,
        baseline,
        ptq,
        quantization=QuantizationSettings(),
        export=ExportSettings(),
        engine=EngineSettings(),
        seed=0,
        progress=NullProgress(),
    )
    assert abs(quantized["test_map"] - found["test_map"]) < 0.03
    assert not {"fine", "coarse"} & set(Quantized(ptq).plan().wrapped)
    assert Baseline(baseline).predictions().keys() == {"fine", "coarse"}
