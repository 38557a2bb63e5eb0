"""The components one by one, in separate directories, on examples of other tasks than images."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qatline.components.artifacts import Evaluation
from qatline.components.artifacts.variants import CANDIDATE, REFERENCE
from qatline.components.runtime.steps import load_step
from qatline.components.step_table import STEPS
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.kfp_components import component_of, section_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "short"),
    [
        pytest.param("regression", [], marks=pytest.mark.slow),
        ("own_task", ["training.epochs=6", "qat.epochs=1"]),
        ("two_inputs", []),
    ],
)
def test_components_run_in_separate_directories(
    name: str, short: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    overrides = ["engine.benchmark_seconds=0.1", *short]
    config = load_config(EXAMPLES / f"{name}.yaml", overrides=overrides)
    metrics = SimpleNamespace(log_metric=lambda *_: None)
    artifacts: dict[str, Any] = {}
    for step in STEPS:
        component, definition = component_of(step), load_step(step.name)
        produced = tmp_path / f"made by {step.name}"
        given: dict[str, Any] = {step.artifact: SimpleNamespace(path=str(produced))}
        for parameter in component.component_spec.inputs:
            if parameter in definition.inputs:
                given[parameter] = artifacts[parameter]
            elif parameter != "seed":
                section = getattr(config, section_of(parameter))
                given[parameter] = section.model_dump(mode="json")
        if step.page:
            given["report"] = SimpleNamespace(path=str(tmp_path / step.page))
        if step.confusion:
            given["confusion"] = SimpleNamespace(log_confusion_matrix=lambda *_: None)
        component.python_func(**given, metrics=metrics, seed=config.seed)
        # As on another machine: the next components find the artifact elsewhere.
        moved = shutil.move(produced, tmp_path / "elsewhere" / step.artifact)
        artifacts[step.artifact] = SimpleNamespace(path=str(moved))
    rows = Evaluation(Path(artifacts["evaluation"].path)).measurements().rows
    reference, candidate = (rows[row].value for row in (REFERENCE, CANDIDATE))
    assert candidate is not None
    assert reference is not None
    assert candidate < 1.1 * reference
    assert (tmp_path / STEPS[-1].page).stat().st_size > 10_000
