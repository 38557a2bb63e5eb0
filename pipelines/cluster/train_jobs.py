"""Training steps with several workers: a launcher in the pipeline, a TrainJob, and its runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from string import Template
from typing import Any

from qat_lib.errors import ConfigError
from qatline.components.store.checkpoint_folder import CHECKPOINTS_VARIABLE
from qatline.components.support.images import IMAGE
from qatline.components.trainjob.task import TEMPLATE_VARIABLE, JobTemplate, to_json
from qatline.components.workers.worker_config import TF_CONFIG_VARIABLE
from qatline.pipelines.cluster.run_identity import has_server, name_run, tracking_environment
from qatline.pipelines.cluster.tasks import launched_steps, request, toleration_operator, workers_of
from qatline.pipelines.config.cluster_settings import ClusterSettings
from qatline.pipelines.config.pod_settings import StepResources
from qatline.pipelines.config.run_config import RunConfig

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_LAUNCHER = {"cpu": "100m", "memory": "512Mi"}
_LAUNCHER_LIMITS = {"cpu_limit": "1", "memory_limit": "2Gi"}
_MANIFESTS = Path(__file__).with_name("manifests") / "runtime.yaml"


def check_workers(config: RunConfig) -> None:
    """Check that the workers' pods in a TrainJob can read and write artifacts.

    Raises:
        ConfigError: they cannot; the message lists every reason.
    """
    steps = sorted(launched_steps(config))
    if not steps:
        return
    problems: list[str] = []
    root = config.cluster.pipeline_root
    if root is not None and not root.startswith(("s3://", "minio://")):
        problems.append(
            f"cluster.pipeline_root={root}: the workers read and write artifacts in S3; set "
            "s3://bucket/folder or minio://bucket/folder"
        )
    for step in steps:
        problems += _pod_problems(config, step)
    if problems:
        raise ConfigError(
            f"Several workers make a TrainJob of {' and '.join(steps)}. Expected pods that can do "
            "it, received:\n" + "\n".join(f"  - {problem}" for problem in dict.fromkeys(problems))
        )


def set_launcher(task: Any, config: RunConfig, step: str) -> None:
    """Configure the pod of a launcher and its TrainJob.

    Args:
        task: a ``kfp.dsl.PipelineTask``.
        config: config adapted to the pods.
        step: step of the TrainJob.
    """
    if not has_server(config):
        name_run(task)
    task.set_env_variable(TEMPLATE_VARIABLE, to_json(job_template(config, step)))
    request(task, launcher_pod(config, step), config.cluster.images.train)


def launcher_pod(config: RunConfig, step: str) -> StepResources:
    """Return the pod of a launcher; it only waits and fetches one artifact.

    It has the environment, attempts and timeout of the step, the node settings of the section, and
    small resources.
    """
    pod = config.cluster.of(step)
    own: dict[str, Any] = dict(_LAUNCHER)
    for name in (
        "env",
        "secret_env",
        "retry",
        "timeout",
        "image_pull_secrets",
        "image_pull_policy",
    ):
        own[name] = getattr(pod, name)
    # Namespaces with a quota may require limits.
    for name, limit in _LAUNCHER_LIMITS.items():
        if getattr(pod, name) is not None:
            own[name] = limit
    return config.cluster.at_exit().model_copy(update=own)


def job_template(config: RunConfig, step: str) -> JobTemplate:
    """Return the TrainJob of a step without the values known only at run time."""
    cluster, pod = config.cluster, config.cluster.of(step)
    job, volumes = cluster.train_job, list(_volumes(pod))
    return JobTemplate(
        nodes=workers_of(config, step),
        image=cluster.images.train or IMAGE,
        runtime=job.runtime,
        runtime_kind=job.runtime_kind,
        resources=_resources(pod),
        env=_environment(config, pod),
        pod=_pod_spec(pod, job.service_account),
        mounts=[mount for _, mount in volumes],
        labels=job.labels,
        keep=job.keep,
    )


def _resources(pod: StepResources) -> dict[str, dict[str, str]]:
    amounts = {
        "requests": {"cpu": pod.cpu, "memory": pod.memory},
        "limits": {"cpu": pod.cpu_limit, "memory": pod.memory_limit},
    }
    if pod.accelerator is not None:
        amounts["limits"][pod.accelerator] = str(pod.accelerator_count)
    found: dict[str, dict[str, str]] = {}
    for kind, given in amounts.items():
        for name, amount in given.items():
            if amount is not None:
                found.setdefault(kind, {})[name] = amount
    return found


def _environment(config: RunConfig, pod: StepResources) -> list[dict[str, Any]]:
    plain = {**tracking_environment(config), **(pod.env or {})}
    variables: list[dict[str, Any]] = []
    for name, value in plain.items():
        variables.append({"name": name, "value": value})
    for name, reference in (pod.secret_env or {}).items():
        secret, _, key = reference.partition("/")
        source = {"secretKeyRef": {"name": secret, "key": key}}
        variables.append({"name": name, "valueFrom": source})
    return variables


def _pod_spec(pod: StepResources, service_account: str | None) -> dict[str, Any]:
    """Return the differences of the workers' pods from those of the runtime."""
    spec: dict[str, Any] = {}
    if service_account is not None:
        spec["serviceAccountName"] = service_account
    if pod.node_selector:
        spec["nodeSelector"] = pod.node_selector
    tolerations: list[dict[str, Any]] = []
    for each in pod.tolerations or ():
        given = {**each.model_dump(exclude_none=True), "operator": toleration_operator(each)}
        tolerations.append(given)
    if tolerations:
        spec["tolerations"] = tolerations
    if volumes := [volume for volume, _ in _volumes(pod)]:
        spec["volumes"] = volumes
    if pod.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in pod.image_pull_secrets]
    return spec


def _volumes(pod: StepResources) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each volume of the pod, and its mount in the container."""
    for number, each in enumerate(pod.volumes or ()):
        name = f"volume-{number}"
        mount = {"name": name, "mountPath": each.path}
        if each.sub_path:
            mount["subPath"] = each.sub_path
        yield {"name": name, "persistentVolumeClaim": {"claimName": each.claim}}, mount


def _pod_problems(config: RunConfig, step: str) -> Iterator[str]:
    pod, account = config.cluster.of(step), config.cluster.train_job.service_account
    given = {**(pod.env or {}), **(pod.secret_env or {})}
    missing = [name for name in _CREDENTIALS if name not in given]
    if missing and account is None:
        yield (
            f"no {' and '.join(missing)} for the object store: set cluster.secret_env, or "
            "cluster.train_job.service_account if that account may read and write the bucket"
        )
    if TF_CONFIG_VARIABLE in given:
        yield f"{TF_CONFIG_VARIABLE} in cluster.env: each worker derives its own; remove it"
    folder = (pod.env or {}).get(CHECKPOINTS_VARIABLE)
    if folder is not None and not _is_mounted(folder, pod):
        yield (
            f"{CHECKPOINTS_VARIABLE}={folder} of {step}, which ends with the pod: mount a volume "
            "there (cluster.volumes)"
        )


def _is_mounted(folder: str, pod: StepResources) -> bool:
    volumes = pod.volumes or ()
    return any(PurePosixPath(folder).is_relative_to(volume.path) for volume in volumes)


def runtime_manifests(
    cluster: ClusterSettings, *, namespace: str = "kubeflow", account: str = ""
) -> str:
    """Return the training runtime and the role of the launchers as YAML text.

    Args:
        cluster: name and kind of the runtime, image and service account.
        namespace: namespace of the pipeline runs.
        account: service account of the pipeline runs. Default: that of the section, else
            ``pipeline-runner``, the account of a single-user Kubeflow Pipelines server.
    """
    job = cluster.train_job
    namespaced = job.runtime_kind == "TrainingRuntime"
    return Template(_MANIFESTS.read_text(encoding="utf-8")).substitute(
        kind=job.runtime_kind,
        runtime=job.runtime,
        place=f"\n  namespace: {namespace}" if namespaced else "",
        image=cluster.images.train or IMAGE,
        namespace=namespace,
        account=account or cluster.service_account or "pipeline-runner",
    )
