"""Files of a finished sweep."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compared_runs import make_run

from qat_lib.errors import ConfigError
from qatline.pipelines.config.run_config import load_config, read_config
from qatline.pipelines.sweep import results
from qatline.pipelines.sweep.measures import TrialMeasures, parse_bound
from qatline.pipelines.sweep.results import settings_text, write_results
from qatline.pipelines.sweep.runner import SweepPlan
from qatline.pipelines.sweep.space import Space, parse_parameter


def trial(number: int, state: str = "finished", quality: float | None = None) -> Any:
    return SimpleNamespace(
        number=number,
        state=state,
        settings={"qat.epochs": str(number), "quantization.calibrator": "mse"},
        run_id=f"run{number}",
        measured=TrialMeasures(quality=quality),
        to_dict=lambda: {"number": number},
    )


@pytest.fixture
def plan(tmp_path: Path) -> SweepPlan:
    def read(texts: Any) -> Any:
        return read_config(overrides=["registry.name=line", *texts], runs_dir=tmp_path / "runs")

    parameters = [parse_parameter("qat.epochs=0,1,2")]
    (tmp_path / "sweep").mkdir()
    return SweepPlan(
        folder=tmp_path / "sweep",
        space=Space(parameters=parameters, read=read),
        bounds=[parse_bound("quality>0.5")],
    )


def test_best_config_is_that_of_the_trial(plan: SweepPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    runs = [make_run("run1", 0.8, 1.0), make_run("run2", 0.9, 2.0)]
    monkeypatch.setattr(
        results, "find_runs", lambda choice, details: asked.append(choice.names) or runs
    )
    trials = [trial(0, "failed"), trial(1, quality=0.8), trial(2, quality=0.9)]
    found = write_results(plan, trials)
    assert found.best is trials[2]
    assert found.config is not None
    config = load_config(found.config)
    assert (config.qat.epochs, config.quantization.calibrator) == (2, "mse")
    assert config == plan.space.config(trials[2].settings)
    assert config.registry.name == "line"
    assert asked == [["run1", "run2"]]
    assert "trial 2: epochs=2, calibrator=mse" in (plan.folder / "sweep.html").read_text()
    assert found.to_dict()["best"] == 2


def test_no_trial_within_the_bounds_leaves_no_config(
    plan: SweepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untracked(choice: Any, details: bool) -> Any:
        raise ConfigError("not tracked")

    monkeypatch.setattr(results, "find_runs", untracked)
    (plan.folder / "best.yaml").write_text("of an earlier bound")
    found = write_results(plan, [trial(1, quality=0.4)])
    assert (found.best, found.config, found.page) == (None, None, None)
    assert list(plan.folder.iterdir()) == []


def test_settings_text_shortens_unambiguous_keys() -> None:
    settings = {"qat.epochs": "1", "training.epochs": "2", "quantization.calibrator": "mse"}
    assert settings_text(settings) == "qat.epochs=1, training.epochs=2, calibrator=mse"
