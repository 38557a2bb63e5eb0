"""Component body of a training step with several workers.

The component's pod does not train. It creates a TrainJob, waits for it, and passes on its output
like any other component.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from qat_lib.errors import ConfigError, StorageError
from qatline.components.runtime.failures import reported_failure
from qatline.components.runtime.shown_outputs import MetricsArtifact, show_metrics
from qatline.components.runtime.steps import load_step
from qatline.components.store.directories import read_step_manifest, verify_directory
from qatline.components.store.remote_directories import fetch_artifact, object_location
from qatline.components.support.scrubbed_output import log_to_pod
from qatline.components.tracking.tracker import PIPELINE_RUN_VARIABLE
from qatline.components.trainjob.kubernetes_api import KubernetesApi, KubernetesError, from_pod
from qatline.components.trainjob.launcher import Launcher
from qatline.components.trainjob.task import (
    TEMPLATE_VARIABLE,
    JobTemplate,
    WorkerTask,
    read_variable,
)

_HANDED_ON = (
    PIPELINE_RUN_VARIABLE,
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_TRACKING_URI",
)
_CANCEL_RETRIES = 4  # within 14 seconds; a pod that is stopped has 30

_log = logging.getLogger(__name__)


def run_as_train_job(
    step: str,
    *,
    settings: Mapping[str, Any],
    seed: int,
    inputs: Mapping[str, str],
    output: str,
    output_uri: str,
    metrics_artifact: MetricsArtifact | None = None,
    api: KubernetesApi | None = None,
) -> dict[str, float]:
    """Run the step ``step`` on the nodes of a TrainJob.

    ``QATLINE_TRAIN_JOB`` contains the template of the TrainJob; the compiled pipeline sets it.

    Args:
        step: name of the step.
        settings: sections that the step reads, as plain values.
        seed: seed of the run.
        inputs: Kubeflow's URI of each input directory by parameter name.
        output: path of the output directory, missing or empty before.
        output_uri: Kubeflow's URI of the output directory.
        metrics_artifact: receives the step's metrics.
        api: the Kubernetes API. Default: that of the pod's own cluster.

    Returns:
        The step's metrics.

    Raises:
        QatlineError: the TrainJob cannot be created, or it failed.
    """
    log_to_pod()
    with reported_failure(step, Path(output)):
        # Fail on wrong settings and addresses before the cluster reserves nodes.
        load_step(step).parse(settings)
        task = WorkerTask(
            step=step,
            settings=dict(settings),
            seed=int(seed),
            inputs=dict(inputs),
            output=output_uri,
        )
        for address in (*task.inputs.values(), output_uri):
            object_location(address)
        launcher = Launcher(
            api=api or from_pod(),
            template=read_variable(TEMPLATE_VARIABLE, JobTemplate),
            task=task,
            run=_pipeline_run(),
            environment=_environment(),
        )
        with canceled_by_signal(lambda: _cancel(launcher)):
            launcher.run_to_end(lambda: take_output(output_uri, Path(output)))
        metrics = dict(read_step_manifest(Path(output)).metrics)
        show_metrics(metrics, metrics_artifact)
    return metrics


def take_output(uri: str, target: Path) -> None:
    """Fetch a finished output; remove a partial one.

    Args:
        uri: Kubeflow's URI of the output.
        target: path of the output directory.

    Raises:
        StorageError: the output is not finished, is incomplete, or cannot be fetched.
    """
    location = object_location(uri)
    if Path(location) == target:
        verify_directory(target)
        return
    shutil.rmtree(target, ignore_errors=True)
    try:
        fetch_artifact(location, target)
    except StorageError:
        shutil.rmtree(target, ignore_errors=True)
        raise


@contextmanager
def canceled_by_signal(cancel: Callable[[], None]) -> Iterator[None]:
    """Call ``cancel`` once if SIGTERM or SIGINT ends the body, then exit the process.

    Outside the main thread, Python cannot handle signals and nothing is done.

    Raises:
        SystemExit: a signal was received; the code is 128 plus the signal's number.
    """

    def stop(number: int, _: FrameType | None) -> None:
        for each in signals:
            # A second signal must not interrupt the cancellation.
            signal.signal(each, signal.SIG_IGN)
        cancel()
        raise SystemExit(128 + number)

    signals = (signal.SIGTERM, signal.SIGINT)
    try:
        before = {number: signal.signal(number, stop) for number in signals}
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cancel(launcher: Launcher) -> None:
    # Kubernetes kills a terminating pod after 30 seconds: do not retry for minutes.
    quick = replace(launcher, api=replace(launcher.api, retries=_CANCEL_RETRIES))
    try:
        quick.cancel()
    except KubernetesError as error:
        _log.warning("TrainJob %s is left in the cluster: %s", launcher.name, error)


def _pipeline_run() -> str:
    run = os.environ.get(PIPELINE_RUN_VARIABLE)
    if not run:
        raise ConfigError(
            f"Expected the id of the pipeline run as {PIPELINE_RUN_VARIABLE}, received none. It is "
            "part of the TrainJob's name. Compile the pipeline with qatline compile; in a pipeline "
            "of yours: kubernetes.use_field_path_as_env."
        )
    return run


def _environment() -> dict[str, str]:
    """Return the variables of this pod that the workers need."""
    found: dict[str, str] = {}
    for name in _HANDED_ON:
        if value := os.environ.get(name):
            found[name] = value
    return found
