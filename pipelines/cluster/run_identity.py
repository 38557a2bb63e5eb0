"""Shared identity of a run's pods: name, tracking server, run id, first and last task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from qat_lib.errors import ConfigError
from qatline.components.runtime.exit_handler import TRAIN_JOBS_VARIABLE, WEBHOOK_VARIABLE
from qatline.components.tracking.tracker import MODE_VARIABLE, PIPELINE_RUN_VARIABLE, URI_VARIABLE
from qatline.pipelines.cluster.tasks import launched_steps, request
from qatline.pipelines.config.run_config import RunConfig

NAME_VARIABLE = "QATLINE_PIPELINE_NAME"
_RUN_LABEL = "metadata.labels['pipeline/runid']"


def identify_run(task: Any, config: RunConfig) -> None:
    """Set the tracking server and the pipeline run in a task's environment.

    Stores in files are not passed on: pods cannot reach them.
    """
    for name, value in tracking_environment(config).items():
        task.set_env_variable(name, value)
    if has_server(config):
        name_run(task)


def name_run(task: Any) -> None:
    """Set the id of the pipeline run in a task's environment."""
    from kfp import kubernetes

    # The id exists only at run time: Kubernetes reads it from the pod's label.
    kubernetes.use_field_path_as_env(task, PIPELINE_RUN_VARIABLE, _RUN_LABEL)


def exit_task_maker(config: RunConfig) -> Callable[[], Any] | None:
    """Return a function that creates the exit task of a run.

    None without tracking server, webhook and TrainJobs.
    """
    webhook, several = config.cluster.webhook, bool(launched_steps(config))
    told = webhook is not None or (WEBHOOK_VARIABLE in (config.cluster.secret_env or {}))
    # Nothing would be left to do at the end.
    if not (has_server(config) or told or several):
        return None

    def make() -> Any:
        from qatline.pipelines.cluster.exit_component import close_run_component

        task = close_run_component()
        task.set_caching_options(False)
        identify_run(task, config)
        if webhook is not None:
            task.set_env_variable(WEBHOOK_VARIABLE, webhook)
        if several:
            task.set_env_variable(TRAIN_JOBS_VARIABLE, "delete")
            if not has_server(config):
                name_run(task)
        request(task, config.cluster.at_exit(), config.cluster.images.engine)
        return task

    return make


def check_task_maker(config: RunConfig) -> Callable[[Mapping[str, Any]], Any] | None:
    """Return a function that creates the check for new inputs; None without ``retrain.only_new``.

    Its pod has the image and the volumes of the steps that read the config's files.

    Raises:
        ConfigError: the config names no tracking server.
    """
    if not config.retrain.only_new:
        return None
    if not has_server(config):
        raise ConfigError(
            "retrain.only_new: expected the address of a tracking server that pods reach as "
            f"tracking.uri, received {config.tracking.uri or 'none'}. Earlier runs are looked up "
            "there."
        )

    def make(parameters: Mapping[str, Any]) -> Any:
        from qatline.pipelines.cluster.new_component import check_new_component

        task = check_new_component()(**parameters)
        task.set_caching_options(False)
        identify_run(task, config)
        # The pod of prepare_data with the additional volumes of train_baseline.
        pod, other = config.cluster.of("prepare_data"), config.cluster.of("train_baseline")
        volumes = {volume.path: volume for volume in (*(other.volumes or ()), *(pod.volumes or ()))}
        request(
            task,
            pod.model_copy(update={"volumes": list(volumes.values())}),
            config.cluster.images.train,
        )
        return task

    return make


def has_server(config: RunConfig) -> bool:
    """Return whether the config names a tracking server reachable by pods."""
    return (config.tracking.uri or "").startswith(("http://", "https://"))


def tracking_environment(config: RunConfig) -> dict[str, str]:
    """Return the variables that configure the tracking server in a pod; empty without one."""
    if not has_server(config):
        return {}
    return {
        URI_VARIABLE: config.tracking.uri or "",
        "MLFLOW_EXPERIMENT_NAME": config.tracking.experiment,
        MODE_VARIABLE: "required" if config.tracking.required else "optional",
        NAME_VARIABLE: model_on_data(config),
    }


def run_name(config: RunConfig, now: datetime) -> str:
    """Return the default name of a run on a cluster: model, data and minute.

    Examples:
        >>> run_name(RunConfig(), datetime(2026, 11, 22, 17, 30))
        'resnet_digits on digits, 2026-11-22 17:30'
    """
    return f"{model_on_data(config)}, {now:%Y-%m-%d %H:%M}"


def model_on_data(config: RunConfig) -> str:
    """Return model and data of a config: ``resnet_digits on digits``."""
    return f"{_model(config.model.name)} on {_data(config)}"


def _model(name: str) -> str:
    if name.endswith(".keras"):
        return PurePosixPath(name).stem
    return name.removeprefix("keras.applications:").replace(":", ".")


def _data(config: RunConfig) -> str:
    data = config.data
    return (data.name or "").replace(":", ".") or (
        PurePosixPath(data.path).stem if data.path else data.kind
    )
