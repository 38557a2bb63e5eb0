"""Turn the ``cluster`` section into what kfp compiles.

These are settings of each task, and one engine backend for all pods.
"""

from __future__ import annotations

from typing import Any

from components.export.choice import sign_problem
from pipelines.config.cluster_settings import StepResources
from pipelines.config.run_config import RunConfig
from qat_lib.errors import ConfigError


def for_pods(config: RunConfig) -> RunConfig:
    """Return the config with ``engine.backend: auto`` resolved if build_engine gets an accelerator.

    Each step asks its own machine what ``auto`` is. The pod of export_onnx has no GPU and would
    export for another backend than the one that the GPU of build_engine is for.

    Raises:
        ConfigError: build_engine and evaluate get different accelerators, or the graphs can't be
            for TensorRT.
    """
    build, evaluate = (config.cluster.of(step).accelerator for step in ("build_engine", "evaluate"))
    if config.engine.backend not in ("auto", "tensorrt"):
        return config
    if build != evaluate:
        raise ConfigError(
            "Expected the same accelerator for build_engine and evaluate, which runs the engines "
            f"where they were built for; received {build or 'none'} and {evaluate or 'none'}. Set "
            "accelerator_count for both under cluster.steps, or engine.backend to openvino or "
            "onnxruntime."
        )
    if build is None or config.engine.backend == "tensorrt":
        return config
    if config.export.target == "openvino":
        raise ConfigError(
            f"The accelerator {build} of build_engine makes TensorRT of engine.backend=auto: "
            "expected export.target auto, tensorrt or onnxruntime, received openvino. Change it, "
            "or set engine.backend=openvino and ask for no accelerator."
        )
    if (
        problem := sign_problem(config.quantization.unsigned, config.export.target, "tensorrt")
    ) is not None:
        raise ConfigError(
            f"The accelerator {build} of build_engine makes TensorRT of engine.backend=auto. "
            f"{problem}"
        )
    return config.model_copy(
        update={"engine": config.engine.model_copy(update={"backend": "tensorrt"})}
    )


def request(task: Any, resources: StepResources) -> None:
    """Set a kfp task's pod resources; the cluster decides the rest."""
    from kfp import kubernetes

    quantities = {
        task.set_cpu_request: resources.cpu,
        task.set_cpu_limit: resources.cpu_limit,
        task.set_memory_request: resources.memory,
        task.set_memory_limit: resources.memory_limit,
    }
    for setter, quantity in quantities.items():
        if quantity is not None:
            setter(quantity)
    if resources.accelerator is not None:
        task.set_accelerator_type(resources.accelerator)
        task.set_accelerator_limit(resources.accelerator_count)
    for variable, reference in (resources.secret_env or {}).items():
        secret, _, key = reference.partition("/")
        kubernetes.use_secret_as_env(task, secret_name=secret, secret_key_to_env={key: variable})
    for label, value in (resources.node_selector or {}).items():
        kubernetes.add_node_selector(task, label, value)
    for each in resources.tolerations or ():
        operator = each.operator or ("Exists" if each.value is None else "Equal")
        kubernetes.add_toleration(
            task, key=each.key, operator=operator, value=each.value, effect=each.effect
        )
