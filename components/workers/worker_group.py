"""Local worker processes of a training, started and monitored by the step."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from qat_lib.errors import StepError
from qatline.components.settings import Settings
from qatline.components.store.checkpoint_folder import CHECKPOINTS_VARIABLE
from qatline.components.store.step_store import STORE_VARIABLE
from qatline.components.support.events import EVENTS_VARIABLE, emit
from qatline.components.workers.worker_config import TF_CONFIG_VARIABLE, WorkerConfig

PARENT_VARIABLE = "QATLINE_WORKER_PARENT"
_PATIENCE = 60.0  # seconds for worker 0 to detect the end of another worker
_LEAVE = 30.0  # seconds for the others to end after worker 0
_PAUSE = 0.2
# Variables of resources that only worker 0 uses.
_OWN = (EVENTS_VARIABLE, STORE_VARIABLE, CHECKPOINTS_VARIABLE)


@contextmanager
def local_workers(step: str, count: int, call: Mapping[str, Any]) -> Iterator[None]:
    """Start ``count - 1`` workers on this machine; this process is worker 0 within the block.

    No process is started for a single worker, or if ``TF_CONFIG`` already configures the workers.

    Args:
        step: name of the step.
        count: number of workers, including this process.
        call: keyword arguments of ``run_component`` for the others.

    Raises:
        StepError: a worker ended with an error.
    """
    if count == 1 or os.environ.get(TF_CONFIG_VARIABLE):
        yield
        return
    hosts = tuple(f"127.0.0.1:{port}" for port in _free_ports(count))
    # Temporary folder of the other workers: killed ones cannot remove their files.
    with tempfile.TemporaryDirectory(
        prefix="qatline-workers-", ignore_cleanup_errors=True
    ) as place:
        others = []
        for index in range(1, count):
            config = WorkerConfig(hosts=hosts, index=index)
            others.append(_start(config, {"step": step, **call}, place))
        with _as_first(step, hosts, others):
            yield


@contextmanager
def _as_first(
    step: str, hosts: tuple[str, ...], others: Sequence[subprocess.Popen[bytes]]
) -> Iterator[None]:
    """Act as worker 0 within the block, and monitor the others."""
    watch = _Watch(step, others)
    os.environ[TF_CONFIG_VARIABLE] = WorkerConfig(hosts=hosts, index=0).to_text()
    try:
        yield
        watch.wait()
    except BaseException as error:
        if (lost := watch.lost()) and isinstance(error, Exception):
            raise StepError(lost) from error
        raise
    finally:
        watch.stop()
        os.environ.pop(TF_CONFIG_VARIABLE)


class _Watch:
    """Monitors processes; exits this one if it does not detect the end of another in time."""

    def __init__(self, step: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._step, self._processes = step, processes
        self._done = threading.Event()
        threading.Thread(target=self._follow, name="worker-watch", daemon=True).start()

    def lost(self) -> str:
        """Return a message on the worker that ended with an error; empty for none."""
        for index, process in enumerate(self._processes, 1):
            if code := process.poll():
                how = f"code {code}" if code > 0 else signal.Signals(-code).name
                return (
                    f"worker {index} of {len(self._processes) + 1} ended with {how}, so the others "
                    "were ended too. The log has its error, unless it was killed or the machine "
                    "ran out of memory. Resumed, training goes on from the last checkpoint."
                )
        return ""

    def wait(self) -> None:
        """Wait for all workers to end by themselves.

        Raises:
            StepError: a worker ended with an error.
        """
        deadline = time.monotonic() + _LEAVE
        while any(process.poll() is None for process in self._processes):
            if time.monotonic() > deadline:
                break  # its work is done, and its output is not needed
            time.sleep(_PAUSE)
        if lost := self.lost():
            raise StepError(lost)

    def stop(self) -> None:
        """Kill the remaining workers."""
        self._done.set()
        for process in self._processes:
            process.kill()
            process.wait()

    def _follow(self) -> None:
        while not self.lost():
            if self._done.wait(_PAUSE):
                return
        lost = self.lost()
        if not self._done.wait(_PATIENCE):
            emit("error", self._step, type="StepError", message=lost, exit_code=1, expected=True)
            for process in self._processes:
                process.kill()
            # TensorFlow blocks in a collective operation without its partner: no exception can end
            # this process.
            os._exit(1)


def _start(
    config: WorkerConfig, call: Mapping[str, Any], temporary: str
) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in _OWN}
    environment[TF_CONFIG_VARIABLE] = config.to_text()
    environment[PARENT_VARIABLE] = str(os.getpid())
    environment["TMPDIR"] = temporary
    process = subprocess.Popen(
        [sys.executable, "-m", "qatline.components.runtime.worker_process"],
        stdin=subprocess.PIPE,
        env=environment,
    )
    assert process.stdin is not None  # for the type checker
    # The arguments go through stdin: command lines are limited in size and publicly visible.
    with process.stdin as stream:
        stream.write(json.dumps(call).encode())
    return process


def _free_ports(count: int) -> list[int]:
    """Return free ports of this machine; another process may still take one before its use."""
    ports = []
    with ExitStack() as stack:
        # Keep all sockets open until every port is known: a closed one could be returned twice.
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(int(listener.getsockname()[1]))
    return ports


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
