"""Workers of a step, started locally or configured by the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from qatline.components.settings import Settings
from qatline.components.workers.worker_group import local_workers


@contextmanager
def step_workers(
    step: str, *, sections: Mapping[str, Settings], seed: int, inputs: Mapping[str, Path]
) -> Iterator[None]:
    """Connect the workers of a training step within the block.

    Args:
        step: name of the step.
        sections: its settings.
        seed: seed of the run.
        inputs: its input directories.

    Raises:
        StepError: a worker ended, or the workers cannot be connected.
    """
    # Imported late: other steps need neither these modules nor their import time.
    from qatline.components.workers.workers import current_workers, lost_workers_named

    counts = [getattr(section, "workers", 1) or 1 for section in sections.values()]
    plain = {name: section.model_dump(mode="json") for name, section in sections.items()}
    paths = {name: str(path.absolute()) for name, path in inputs.items()}
    call = {"settings": plain, "seed": seed, "inputs": paths}
    with local_workers(step, max(counts), call), lost_workers_named():
        current_workers()
        yield
