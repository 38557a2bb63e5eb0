"""The steps of the main pipeline as tasks of KFP."""

from __future__ import annotations

from qatline.components.step_table import STEPS

STEP_ARTIFACTS: dict[str, str] = {step.name: step.artifact for step in STEPS}
"""The artifact that each step hands on, in the order of the pipeline."""

IMAGE_OF: dict[str, str] = {step.name: step.image for step in STEPS}
"""The image that each step runs in: ``train`` or ``engine``."""


def step_of_task(task: str) -> str:
    """Return the step's name of a KFP task: ``train-baseline-component`` is ``train_baseline``."""
    return task.removesuffix("-component").replace("-", "_")
