"""Conversion of the ``cluster`` section into kfp task settings: resources, backend and workers."""

from __future__ import annotations

from typing import Any

from qat_lib.engines import get_backend
from qat_lib.errors import ConfigError
from qatline.components.export.choice import sign_problem
from qatline.components.step_table import STEPS
from qatline.pipelines.cluster.portable import portable
from qatline.pipelines.config.pod_settings import StepResources, Toleration
from qatline.pipelines.config.run_config import RunConfig


def for_pods(config: RunConfig) -> RunConfig:
    """Return the config adapted to the pods.

    Paths are mapped to the pods (``qatline.pipelines.cluster.portable``), and ``engine.backend:
    auto`` is resolved if build_engine requests an accelerator.

    Otherwise each step would resolve ``auto`` on its own machine: the pod of export_onnx has no GPU
    and would export for another backend than the GPU pod of build_engine.

    Raises:
        ConfigError: build_engine and evaluate request different accelerators, the graphs cannot
            target TensorRT, or the config names files or modules of this machine.
    """
    config = portable(config)
    build, evaluate = (config.cluster.of(step).accelerator for step in ("build_engine", "evaluate"))
    backend = config.engine.backend
    # A CPU engine also runs in pods with accelerators.
    if backend != "auto" and get_backend(backend).supports("cpu"):
        return config
    if build != evaluate:
        raise ConfigError(
            "Expected the same accelerator for build_engine and evaluate, which runs the engines "
            f"where they were built for; received {build or 'none'} and {evaluate or 'none'}. Set "
            "accelerator_count for both under cluster.steps, or engine.backend to openvino or "
            "onnxruntime."
        )
    if build is None or backend != "auto":
        return config
    problem = sign_problem(config.quantization.unsigned, config.export.target, "tensorrt")
    if problem is not None:
        raise ConfigError(
            f"The accelerator {build} of build_engine makes TensorRT of engine.backend=auto. "
            f"{problem} Or set engine.backend=openvino and ask for no accelerator."
        )
    return config.model_copy(
        update={"engine": config.engine.model_copy(update={"backend": "tensorrt"})}
    )


def request(task: Any, pod: StepResources, image: str | None = None) -> None:
    """Set a kfp task's pod settings; unset ones are left to the cluster.

    Args:
        task: a ``kfp.dsl.PipelineTask``.
        pod: settings of its pod.
        image: container image; None keeps the component's.
    """
    if image is not None:
        task.set_container_image(image)
    _request_resources(task, pod)
    _choose_node(task, pod)
    _set_environment(task, pod)
    _mount(task, pod)
    _set_attempts(task, pod)


def _request_resources(task: Any, pod: StepResources) -> None:
    quantities = {
        task.set_cpu_request: pod.cpu,
        task.set_cpu_limit: pod.cpu_limit,
        task.set_memory_request: pod.memory,
        task.set_memory_limit: pod.memory_limit,
    }
    for setter, quantity in quantities.items():
        if quantity is not None:
            setter(quantity)
    if pod.accelerator is not None:
        task.set_accelerator_type(pod.accelerator)
        task.set_accelerator_limit(pod.accelerator_count)


def _choose_node(task: Any, pod: StepResources) -> None:
    from kfp import kubernetes

    for label, value in (pod.node_selector or {}).items():
        kubernetes.add_node_selector(task, label, value)
    for each in pod.tolerations or ():
        kubernetes.add_toleration(
            task,
            key=each.key,
            operator=toleration_operator(each),
            value=each.value,
            effect=each.effect,
        )


def toleration_operator(toleration: Toleration) -> str:
    """Return a toleration's operator; the default is ``Equal`` with a value, else ``Exists``."""
    # Kubernetes's default is Equal: without a value it matches only taints with an empty one.
    return toleration.operator or ("Exists" if toleration.value is None else "Equal")


def _set_environment(task: Any, pod: StepResources) -> None:
    from kfp import kubernetes

    for variable, value in (pod.env or {}).items():
        task.set_env_variable(variable, value)
    for variable, reference in (pod.secret_env or {}).items():
        secret, _, key = reference.partition("/")
        kubernetes.use_secret_as_env(task, secret_name=secret, secret_key_to_env={key: variable})


def _mount(task: Any, pod: StepResources) -> None:
    from kfp import kubernetes

    for volume in pod.volumes or ():
        kubernetes.mount_pvc(
            task, pvc_name=volume.claim, mount_path=volume.path, sub_path=volume.sub_path
        )
    if pod.image_pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(pod.image_pull_secrets))
    if pod.image_pull_policy is not None:
        kubernetes.set_image_pull_policy(task, pod.image_pull_policy)


def _set_attempts(task: Any, pod: StepResources) -> None:
    """Limit the time of an attempt; retry with backoff.

    kfp's default limit for all attempts is one hour; a training that fails later would not be
    repeated. The limit is therefore always set.
    """
    from kfp import kubernetes

    if pod.timeout is not None:
        kubernetes.set_timeout(task, pod.timeout)
    if pod.retry is not None and pod.retry.limit:
        task.set_retry(
            pod.retry.limit,
            backoff_duration=f"{pod.retry.backoff}s",
            backoff_factor=pod.retry.factor,
            backoff_max_duration=f"{pod.retry.max_duration}s",
        )


def workers_of(config: RunConfig, step: str) -> int:
    """Return the number of workers of a step; 1 for steps without training."""
    if step == "train_baseline":
        return config.training.workers
    if step == "finetune_qat":
        return config.qat.workers or config.training.workers
    return 1


def launched_steps(config: RunConfig) -> frozenset[str]:
    """Return the steps that run as a TrainJob, those with several workers."""
    launched: set[str] = set()
    for step in STEPS:
        if step.distributed and workers_of(config, step.name) > 1:
            launched.add(step.name)
    return frozenset(launched)
