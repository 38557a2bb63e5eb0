"""Monitoring of a run on a server by state changes of its steps, and its verdict."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qat_lib.errors import ConfigError
from qatline.components.tracking.pipeline_run import RUN_TAG
from qatline.components.tracking.store import open_client, translated
from qatline.pipelines.cluster.connection import ClusterError
from qatline.pipelines.steps import STEP_ARTIFACTS, step_of_task

_ENDED = frozenset({"succeeded", "failed", "canceled", "skipped"})
_FAILED = frozenset({"failed", "canceled"})
_OUTAGES = 5  # tolerated consecutive failures of polls
_TIMEOUT_CODE = 124


class ClusterRunError(ClusterError):
    """A run on the cluster ended without success, or exceeded the timeout.

    Attributes:
        step: the failed step; empty if the server names none.
    """

    def __init__(self, message: str, *, exit_code: int = 1, step: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.step = step


@dataclass(frozen=True, kw_only=True)
class ClusterRun:
    """State of a run on the server.

    Args:
        state: ``pending``, ``running``, ``succeeded``, ``failed``, ``canceled`` or ``skipped``.
        steps: state of each started step.
        errors: error message of each failed step.
        error: error message of the run.
    """

    run_id: str
    name: str
    state: str
    steps: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state in _ENDED


def run_id_of(text: str) -> str:
    """Return the run id in an id or address, as printed by ``submit``.

    Raises:
        ConfigError: the text contains no id.
    """
    found = text.rstrip("/").rpartition("/")[2]
    if not found or any(not (letter.isalnum() or letter in "-_.") for letter in found):
        raise ConfigError(
            f"Expected the id of a run or the address that submit prints, received {text!r}."
        )
    return found


def describe_run(run: Any) -> ClusterRun:
    """Return a ``V2beta1Run`` as plain data; for repeated steps, the latest attempt counts."""
    steps: dict[str, str] = {}
    errors: dict[str, str] = {}
    tasks = list(getattr(run.run_details, "task_details", None) or ())
    # Sorted by time, so that the latest attempt of a step overwrites earlier ones.
    tasks.sort(key=lambda task: str(task.create_time or ""))
    for task in tasks:
        name = step_of_task(task.display_name or "")
        if name not in STEP_ARTIFACTS:
            continue  # a driver, an executor or a group
        steps[name] = _state(task.state)
        message = getattr(task.error, "message", None)
        errors.pop(name, None)
        if message and steps[name] in _FAILED:
            errors[name] = str(message)
    return ClusterRun(
        run_id=str(run.run_id),
        name=str(run.display_name or run.run_id),
        state=_state(run.state),
        steps={step: steps[step] for step in STEP_ARTIFACTS if step in steps},
        errors=errors,
        error=str(getattr(run.error, "message", None) or ""),
    )


def follow_run(
    read: Callable[[], ClusterRun],
    show: Callable[[str], None],
    *,
    poll: float = 5.0,
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ClusterRun:
    """Wait for the end of a run and report each change of a step's state.

    Short outages of the server are tolerated.

    Args:
        read: requests the run from the server.
        show: receives one line per change.
        poll: seconds between two requests.
        timeout: maximum seconds to wait; None for no limit.
        clock: monotonic clock in seconds.
        sleep: waits.

    Returns:
        The successful run.

    Raises:
        ClusterRunError: the run failed, was canceled, or exceeded the timeout (exit code 124).
        ClusterError: the server remains unreachable.
    """
    end = math.inf if timeout is None else clock() + timeout
    known: dict[str, str] = {}
    outages = 0
    while True:
        try:
            run = read()
            outages = 0
        except ClusterError:
            outages += 1
            # Without any successful poll, the address or the run is wrong: fail at once.
            if outages > _OUTAGES or not known:
                raise
            run = None
        if run is not None:
            _tell_changes(run, known, show)
            if run.ended:
                return _successful(run)
        left = end - clock()
        if left <= 0:
            raise ClusterRunError(_late(run, timeout), exit_code=_TIMEOUT_CODE)
        sleep(min(poll, left))


def _tell_changes(run: ClusterRun, known: dict[str, str], show: Callable[[str], None]) -> None:
    for name, state in {**run.steps, "": run.state}.items():
        if known.get(name) != state:
            known[name] = state
            show(f"{name or 'run'}  {state}")


def _successful(run: ClusterRun) -> ClusterRun:
    if run.state not in _FAILED:
        return run
    if run.state == "canceled":
        raise ClusterRunError(f"The run {run.name} was canceled.")
    if not run.errors:
        failed = next((step for step, state in run.steps.items() if state == "failed"), "")
        where = f" in step {failed}" if failed else ""
        reason = run.error or "the server gives no reason; the pod's log has it"
        raise ClusterRunError(f"The run {run.name} failed{where}: {reason}.", step=failed)
    step, reason = next(iter(run.errors.items()))
    raise ClusterRunError(f"The run {run.name} failed in step {step}: {reason}", step=step)


def _late(run: ClusterRun | None, timeout: float | None) -> str:
    state = run.state if run is not None else "unknown"
    return (
        f"Expected the end of the run within {timeout:g} s; it is {state}. It goes on: wait again, "
        "or look at it in the UI."
    )


def _state(state: Any) -> str:
    text = str(state or "").lower()
    return "pending" if text in ("", "runtime_state_unspecified") else text


def find_verdict(uri: str, run_id: str) -> str:
    """Return the decision of a run: ``promote``, ``reject``, or ``unknown``.

    Args:
        uri: address of the tracking server.
        run_id: id of the run in Kubeflow.

    Raises:
        ConfigError: the address contains credentials.
        TrackingError: the server is unreachable or refuses.
    """
    client: Any = open_client(uri)
    with translated("the verdict can't be read"):
        experiments = [each.experiment_id for each in client.search_experiments()]
        wanted = f"tags.`{RUN_TAG}` = '{run_id}'"
        for run in client.search_runs(experiments, filter_string=wanted):
            if verdict := run.data.tags.get("qatline.verdict"):
                return str(verdict)
    return "unknown"
