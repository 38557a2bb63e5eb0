"""Fast path for steps with results in the store, without a process per step.

Kubeflow's runner would start a process for each, which would import qatline to find its result.
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

_FOLDER = "qatline-reused"  # Kubeflow's runner uses the pipeline's name and the time


@dataclass(frozen=True, kw_only=True)
class StoredStep:
    """A step with a result in the store, with its arguments."""

    step: Step
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]


def find_stored(
    steps: Sequence[Step], sections: Mapping[str, Any], *, seed: int
) -> list[StoredStep]:
    """Return the leading steps with a result in the store; none if the settings are wrong.

    Args:
        steps: steps of a pipeline in order; each reads artifacts of earlier ones by name.
        sections: sections of the config.
        seed: seed of the run.
    """
    try:
        return leading_stored(steps, sections, seed=seed)
    except QatlineError:  # the step itself reports the error
        return []


def leading_stored(
    steps: Sequence[Step], sections: Mapping[str, Any], *, seed: int
) -> list[StoredStep]:
    """Return the steps up to the first one without a result in the store.

    Arguments match ``find_stored``.

    Raises:
        QatlineError: the settings of a step are wrong.
    """
    artifacts: dict[str, str] = {}
    found: list[StoredStep] = []
    for step in steps:
        definition = load_step(step.name)
        settings = {name: sections.get(name, {}) for name in definition.sections}
        inputs = {name: artifacts[name] for name in definition.inputs if name in artifacts}
        path = stored_result(step.name, settings=settings, seed=seed, inputs=inputs)
        if path is None:
            return found
        # The key of each step depends on the digests of its inputs: resolve the steps in order.
        artifacts[step.artifact] = str(path)
        found.append(StoredStep(step=step, settings=settings, inputs=inputs))
    return found


def take_stored(found: Sequence[StoredStep], outputs: Path, *, seed: int) -> dict[str, Path]:
    """Copy the results to the locations used by Kubeflow's runner, and report each step.

    Results damaged or removed meanwhile are computed again.

    Returns:
        The copies by the name of the artifact.

    Args:
        found: result of ``find_stored``.
        outputs: folder of the outputs of this attempt.
        seed: seed of the run.

    Raises:
        QatlineError: a step failed.
    """
    copies: dict[str, Path] = {}
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
        copies[each.step.artifact] = task / each.step.artifact
    return copies
