"""Trials of a sweep as runs on a Kubeflow Pipelines server, with their measures from MLflow."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from qat_lib.errors import ConfigError
from qatline.pipelines.cluster.progress import ClusterRun, ClusterRunError, follow_run
from qatline.pipelines.cluster.run_identity import has_server, model_on_data
from qatline.pipelines.cluster.server import Cluster
from qatline.pipelines.cluster.tasks import for_pods
from qatline.pipelines.comparison.find_runs import RunChoice, find_runs
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.sweep.measures import TrialMeasures
from qatline.pipelines.sweep.runner import SweepInterruptedError, SweepPlan, common_steps
from qatline.pipelines.sweep.space import trial_config
from qatline.pipelines.sweep.study import SweepTrial


class ClusterTrials:
    """Runs of trials on a cluster.

    The cluster reuses only finished steps. The runs that follow the first one are therefore
    submitted once it has finished the steps that all trials have in common.

    Args:
        plan: the sweep.
        cluster: the server.
        experiment: experiment of the runs on the server.
        poll: seconds between two requests for the state of a run.
    """

    def __init__(
        self, plan: SweepPlan, cluster: Cluster, *, experiment: str, poll: float = 5.0
    ) -> None:
        self._plan, self._cluster = plan, cluster
        self._experiment, self._poll = experiment, poll
        self._common = common_steps(plan)
        self._first = threading.Lock()
        self._shared = threading.Event()
        self._submitting = threading.Lock()  # kfp compiles one pipeline at a time

    def run(
        self, trial: SweepTrial, show: Callable[[str], None], stopping: threading.Event
    ) -> TrialMeasures:
        """Submit the run of a trial unless it has one, wait for its end, and read its measures.

        Args:
            trial: the trial.
            show: receives the run's address, and a line for each change of its state.
            stopping: ends the wait; the run goes on, for a resumed sweep.

        Raises:
            ClusterRunError: the run failed.
            ClusterError: the server cannot be reached or refuses.
            SweepInterruptedError: the wait was ended.
            TrackingError: the measures cannot be read.
        """
        leads = self._first.acquire(blocking=False)
        ends_sweep = False
        try:
            while not leads and not self._shared.is_set():
                self._pause(stopping, 0.1)
            self._pause(stopping, 0.0)
            config = trial_config(self._plan.space.config(trial.settings))
            if not trial.run_id:
                name = f"{model_on_data(config)}, trial {trial.number}"
                with self._submitting:
                    submitted = self._cluster.submit(config, experiment=self._experiment, name=name)
                trial.start(submitted.run_id)
                show(submitted.url)

            def read() -> ClusterRun:
                run = self._cluster.run(trial.run_id)
                if all(run.steps.get(step) in ("succeeded", "skipped") for step in self._common):
                    self._shared.set()
                return run

            follow_run(
                read, show, poll=self._poll, sleep=lambda seconds: self._pause(stopping, seconds)
            )
        except ClusterRunError as error:
            ends_sweep = error.step in self._common
            raise
        finally:
            if leads and not ends_sweep:
                self._shared.set()
        return read_measures(config, trial.run_id)

    def _pause(self, stopping: threading.Event, seconds: float) -> None:
        if stopping.wait(seconds):
            raise SweepInterruptedError("Interrupted.", signal_number=signal.SIGINT)


def read_measures(config: RunConfig, run_id: str) -> TrialMeasures:
    """Return the measures of a run on a cluster from its record in MLflow.

    Raises:
        ConfigError: the run has no record.
        TrackingError: the server is unreachable or refuses.
    """
    tracking = config.tracking
    choice = RunChoice(names=[run_id], uri=tracking.uri, experiment=tracking.experiment)
    (run,) = find_runs(choice)
    return TrialMeasures.of(run.rows, None if run.verdict == "-" else run.verdict)


def check_for_cluster(config: RunConfig) -> None:
    """Check that pods can run a config and record its results.

    Raises:
        ConfigError: it names files of this machine, or no tracking server.
    """
    if not has_server(config):
        raise ConfigError(
            "tracking.uri: expected the address of an MLflow server that pods and this machine "
            f"reach, received {config.tracking.uri or 'none'}. The measures of the trials are read "
            "there."
        )
    for_pods(config)
