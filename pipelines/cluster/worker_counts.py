"""Number of workers of each step, and the steps executed by a launcher."""

from __future__ import annotations

from qatline.components.step_table import STEPS
from qatline.pipelines.config.run_config import RunConfig


def workers_of(config: RunConfig, step: str) -> int:
    """Return the number of workers of a step; 1 for steps without training."""
    if step == "train_baseline":
        return config.training.workers
    if step == "finetune_qat":
        return config.qat.workers or config.training.workers
    return 1


def launched_steps(config: RunConfig) -> frozenset[str]:
    """Return the steps that run as a TrainJob, those with several workers."""
    launched: set[str] = set()
    for step in STEPS:
        if step.distributed and workers_of(config, step.name) > 1:
            launched.add(step.name)
    return frozenset(launched)
