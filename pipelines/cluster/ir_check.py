"""Validation of a compiled pipeline without a cluster.

kfp's loader accepts unknown fields in executors and platform configs, and dangling references. This
module therefore checks the three schemas (pipeline, executors, kubernetes config) and the
references of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qat_lib.errors import ExportError


def check_ir(documents: Sequence[Mapping[str, Any]]) -> None:
    """Check the documents of a compiled pipeline: the spec and, if present, the platform spec.

    Raises:
        ExportError: a field is unknown or a reference dangles; the message lists every problem.
    """
    problems = [*_schema_problems(documents), *graph_problems(documents[0])]
    if problems:
        raise ExportError(
            "The compiled pipeline is not valid:\n" + "\n".join(f"  - {each}" for each in problems)
        )


def _schema_problems(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    from google.protobuf import json_format  # type: ignore[import-untyped]
    from kfp.kubernetes import kubernetes_executor_config_pb2
    from kfp.pipeline_spec import pipeline_spec_pb2

    spec, platform = documents[0], documents[1] if len(documents) > 1 else {}
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    kubernetes = (
        platform.get("platforms", {})
        .get("kubernetes", {})
        .get("deploymentSpec", {})
        .get("executors", {})
    )
    targets: list[tuple[str, Any, Any]] = [("pipeline", spec, pipeline_spec_pb2.PipelineSpec())]
    targets += [
        (f"executor {name}", value, pipeline_spec_pb2.PipelineDeploymentConfig.ExecutorSpec())
        for name, value in executors.items()
    ]
    targets += [
        (
            f"kubernetes config of {name}",
            value,
            kubernetes_executor_config_pb2.KubernetesExecutorConfig(),
        )
        for name, value in kubernetes.items()
    ]
    for name, value in platform.get("platforms", {}).items():
        targets.append((f"platform {name}", value, pipeline_spec_pb2.SinglePlatformSpec()))
    # Parsing into the protobuf class rejects unknown fields and wrong types.
    for name, value, message in targets:
        try:
            json_format.ParseDict(value, message)
        except json_format.ParseError as error:
            yield f"{name}: {error}"


def graph_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield each dangling reference of a pipeline spec."""
    components = spec.get("components", {})
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    for name, component in components.items():
        label = component.get("executorLabel")
        if label is not None and label not in executors:
            yield f"component {name} refers to the executor {label}, which is not there"
    dags = {"root": spec.get("root", {}), **components}
    for owner, component in dags.items():
        tasks = component.get("dag", {}).get("tasks", {})
        for name, task in tasks.items():
            reference = task.get("componentRef", {}).get("name")
            if reference not in components:
                yield (
                    f"task {name} of {owner} refers to the component {reference}, "
                    "which is not there"
                )
            # KFP orders tasks by ``dependentTasks`` alone.
            producers = set(_values_of(task.get("inputs", {}), "producerTask"))
            for other in sorted(producers.union(task.get("dependentTasks", ())) - set(tasks)):
                yield f"task {name} of {owner} refers to the task {other}, which is not there"
            if missing := sorted(producers - set(task.get("dependentTasks", ()))):
                yield f"task {name} of {owner} reads from {missing} without depending on them"


def _values_of(node: Any, key: str) -> Iterator[str]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            if name == key:
                yield value
            else:
                yield from _values_of(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from _values_of(value, key)
