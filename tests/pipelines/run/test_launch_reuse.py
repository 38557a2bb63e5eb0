"""Pipelines of runs with stored results: only the other steps have a process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qatline.components.step_table import STEPS, Step
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.run import launch

NAMES = [step.name for step in STEPS]


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    started: list[Any] = []
    monkeypatch.setattr(launch, "run_pipeline", lambda pipeline, *others: started.append(pipeline))
    return started


def store(monkeypatch: pytest.MonkeyPatch, steps: Sequence[Step]) -> None:
    """Make the results of some steps look stored."""
    monkeypatch.setattr(launch, "find_stored", lambda *others, seed: steps)
    copies = {step.artifact: Path("/outputs", step.artifact) for step in steps}
    monkeypatch.setattr(launch, "take_stored", lambda found, outputs, seed: copies)


def components(pipeline: Any) -> list[str]:
    return [name for name in launch.step_names(pipeline) if not name.startswith("importer")]


@pytest.mark.parametrize("count", [0, 3, 7])
def test_run_executes_the_steps_without_a_result(
    count: int, pipelines: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store(monkeypatch, STEPS[:count])
    launch._run_steps(launch.MAIN_PIPELINE, RunConfig(), tmp_path)
    (pipeline,) = pipelines
    assert components(pipeline) == NAMES[count:]
    executors = pipeline.pipeline_spec.deployment_spec["executors"]
    imported = {
        executor["importer"]["artifactUri"]["constant"]
        for executor in executors.values()
        if "importer" in executor
    }
    # Results that no other step reads need no importer, but do no harm.
    assert imported <= {f"/outputs/{step.artifact}" for step in STEPS[:count]}
    assert bool(imported) == bool(count)


def test_run_with_all_results_starts_no_pipeline(
    pipelines: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store(monkeypatch, STEPS)
    launch._run_steps(launch.MAIN_PIPELINE, RunConfig(), tmp_path)
    assert pipelines == []
