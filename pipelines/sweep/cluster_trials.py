"""Trials of a sweep as runs on a Kubeflow Pipelines server, with their measures from MLflow."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence

from qat_lib.errors import ConfigError, TrackingError
from qatline.components.support.credentials import scrub
from qatline.components.tracking.store import open_client, translated
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
        # The first trial runs the common steps alone; the others wait and then find them in KFP's
        # cache.
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
        return read_measures(cluster_runs(self._plan, [trial.run_id]))

    def _pause(self, stopping: threading.Event, seconds: float) -> None:
        if stopping.wait(seconds):
            raise SweepInterruptedError("Interrupted.", signal_number=signal.SIGINT)


def cluster_runs(plan: SweepPlan, run_ids: Sequence[str]) -> RunChoice:
    """Return the choice of runs on a cluster by their records in MLflow."""
    tracking = plan.space.config({}).tracking
    return RunChoice(
        names=run_ids, uri=plan.tracking_uri or tracking.uri, experiment=tracking.experiment
    )


def read_measures(choice: RunChoice) -> TrialMeasures:
    """Return the measures of a run from its record in MLflow.

    Raises:
        TrackingError: the server is unreachable or refuses, or the run has no record.
    """
    try:
        (run,) = find_runs(choice)
    except ConfigError as error:
        # The run is done: the trial must not fail, and be repeated, for a wrong address.
        raise TrackingError(f"The measures of a trial can't be read. {error}") from error
    return TrialMeasures.of(run.rows, None if run.verdict == "-" else run.verdict)


def check_records(plan: SweepPlan) -> None:
    """Check that this machine reaches the MLflow server of the runs.

    Raises:
        TrackingError: the server is unreachable or refuses.
    """
    uri = cluster_runs(plan, ()).uri or ""
    try:
        with translated("experiments can't be listed"):
            open_client(uri).search_experiments(max_results=1)
    except TrackingError as error:
        raise TrackingError(
            f"The measures of the trials are read from the MLflow server {scrub(uri)}, which this "
            "machine can't reach. Start it, or name its address from this machine with "
            "--tracking-uri."
        ) from error


def check_for_cluster(config: RunConfig) -> None:
    """Check that pods can run a config and record its results.

    Raises:
        ConfigError: it names files of this machine, or no tracking server.
    """
    if not has_server(config):
        raise ConfigError(
            "tracking.uri: expected the address of an MLflow server that pods reach, received "
            f"{config.tracking.uri or 'none'}. The measures of the trials are read there; if this "
            "machine reaches the server by another address, name that with --tracking-uri."
        )
    for_pods(config)
