"""A run whose every step is in the store: taken from there, without a process for each.

Kubeflow's runner would start eight processes, each of which imports qatline to find its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qat_lib.errors import QatlineError
from qatline.components.runtime.step import run_component, stored_result
from qatline.components.runtime.steps import load_step
from qatline.components.step_table import Step

_FOLDER = "qatline-reused"  # where Kubeflow's runner has the pipeline and the time


@dataclass(frozen=True, kw_only=True)
class StoredStep:
    """A step whose result is in the store, with the arguments that it has there."""

    step: Step
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]


def find_stored(
    steps: Sequence[Step], sections: Mapping[str, Any], *, seed: int
) -> list[StoredStep] | None:
    """Return the steps with their arguments if the store has all their results, else None.

    Args:
        steps: steps of a pipeline in order; each reads artifacts of earlier ones by their names.
        sections: the sections of the config.
        seed: seed of the run.
    """
    artifacts: dict[str, str] = {}
    found = []
    for step in steps:
        definition = load_step(step.name)
        settings = {name: sections.get(name, {}) for name in definition.sections}
        inputs = {name: artifacts[name] for name in definition.inputs if name in artifacts}
        try:
            path = stored_result(step.name, settings=settings, seed=seed, inputs=inputs)
        except QatlineError:  # the step itself says it better
            return None
        if path is None:
            return None
        artifacts[step.artifact] = str(path)
        found.append(StoredStep(step=step, settings=settings, inputs=inputs))
    return found


def take_stored(found: Sequence[StoredStep], outputs: Path, *, seed: int) -> None:
    """Put the results where Kubeflow's runner would have put them, and report each step.

    A result that was damaged or removed meanwhile is computed again.

    Args:
        found: what ``find_stored`` returned.
        outputs: folder of the outputs of this attempt.
        seed: seed of the run.

    Raises:
        QatlineError: a step failed.
    """
    for each in found:
        task = outputs / _FOLDER / f"{each.step.name.replace('_', '-')}-component"
        task.mkdir(parents=True, exist_ok=True)
        run_component(
            each.step.name,
            settings=each.settings,
            seed=seed,
            inputs=each.inputs,
            output=str(task / each.step.artifact),
        )
