"""Worker of a TrainJob: ``python -m qatline.components.runtime.train_job_worker``.

It fetches the step's inputs, derives TF_CONFIG from the pod's variables, and runs the step as its
worker. Worker 0 stores the output at Kubeflow's URI, and its checkpoints next to it until then.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from qat_lib.errors import QatlineError
from qatline.components.runtime.step import run_component
from qatline.components.store.checkpoint_folder import CHECKPOINTS_VARIABLE
from qatline.components.store.remote_directories import (
    fetch_artifact,
    object_location,
    store_artifact,
)
from qatline.components.support.scrubbed_output import log_to_pod
from qatline.components.trainjob.checkpoint_mirror import mirrored_checkpoints
from qatline.components.trainjob.task import TASK_VARIABLE, WorkerTask, read_variable
from qatline.components.trainjob.tf_config import (
    ADDRESSES_VARIABLE,
    derive_worker_config,
    wait_for_hosts,
)
from qatline.components.workers.worker_config import TF_CONFIG_VARIABLE

START_PATIENCE = 600.0
"""Maximum seconds of waiting for the other workers' host names."""

_log = logging.getLogger("qatline.components.runtime.train_job_worker")  # as __main__, too


def run_worker() -> None:
    """Run the task in ``QATLINE_WORKER_TASK`` as one of its workers.

    Raises:
        QatlineError: the task or the pod's variables are wrong, an input cannot be fetched, the
            step failed, or the output cannot be stored.
    """
    task = read_variable(TASK_VARIABLE, WorkerTask)
    config = derive_worker_config(os.environ)
    index, hosts = config.index, config.hosts
    os.environ[TF_CONFIG_VARIABLE] = config.to_text()
    _log.info("worker %d of %d: %s", index, len(hosts), hosts[index])
    # Pods start one after another, and a pod's name resolves only after its start.
    if ADDRESSES_VARIABLE not in os.environ:
        wait_for_hosts(hosts, START_PATIENCE)
    with tempfile.TemporaryDirectory(prefix="qatline-") as folder:
        inputs: dict[str, str] = {}
        for name, uri in task.inputs.items():
            target = Path(folder) / "inputs" / name
            fetch_artifact(object_location(uri), target)
            inputs[name] = str(target)
        output = Path(folder) / "outputs" / task.step
        output.parent.mkdir()
        with _checkpoints(index, Path(folder) / "checkpoints", object_location(task.output)):
            run_component(
                task.step, settings=task.settings, seed=task.seed, inputs=inputs, output=str(output)
            )
            # All workers have the same weights; one stores them.
            if index == 0:
                store_artifact(output, object_location(task.output))
                _log.info("the output is stored: %s", task.output)


def _checkpoints(index: int, folder: Path, output: str) -> AbstractContextManager[None]:
    """Mirror worker 0's checkpoints to the object store unless it has a persistent folder."""
    if index > 0 or os.environ.get(CHECKPOINTS_VARIABLE):
        return nullcontext()
    os.environ[CHECKPOINTS_VARIABLE] = str(folder)
    return mirrored_checkpoints(folder, output.rstrip("/") + ".checkpoints")


def run_pod() -> int:
    """Run the worker; return the exit code.

    Errors that a user can act on are logged as one message at the end of the pod's log.
    """
    log_to_pod()
    try:
        run_worker()
    except QatlineError as error:
        _log.error("%s: %s", type(error).__name__, error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(run_pod())
