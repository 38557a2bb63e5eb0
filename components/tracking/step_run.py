"""Tracking run of a step: the tracker that the environment asks for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qat_lib.errors import TrackingError
from qatline.components.tracking.mlflow_tracker import open_run
from qatline.components.tracking.remote_tracker import open_remote_run
from qatline.components.tracking.tracker import (
    ClosableRun,
    NullTracker,
    OptionalTracker,
    StepTimes,
    StepTracker,
    tracking_mode,
)


@contextmanager
def step_run(
    step: str, *, warn: Callable[[str], None], times: StepTimes | None = None
) -> Iterator[StepTracker]:
    """Open a step's tracking run; end it FINISHED or FAILED.

    An exception ends it FAILED.

    Args:
        step: name of the step, which is the name of a new run.
        warn: receives one message when tracking is optional and fails.
        times: when the step ran; default: now, while the block runs.

    Raises:
        TrackingError: tracking is required and the store can't be reached or refuses.
    """
    mode = tracking_mode()
    if mode == "off":
        yield NullTracker()
        return
    try:
        run = _open(step, times)
    except TrackingError as error:
        if mode == "required":
            raise
        warn(f"the step is not tracked: {error}")
        yield NullTracker()
        return
    status = "FAILED"
    try:
        yield OptionalTracker(run, warn) if mode == "optional" else run
        status = "FINISHED"
    finally:
        try:
            run.close(status)
        except TrackingError as error:
            # What the body raised is the better message, and must not be hidden by this one.
            if mode == "required" and status == "FINISHED":
                raise
            warn(str(error))


def _open(step: str, times: StepTimes | None) -> ClosableRun:
    remote = (
        open_remote_run(step) if times is None and "QATLINE_TRACKING_SOCKET" in os.environ else None
    )
    return remote or open_run(step, times)
