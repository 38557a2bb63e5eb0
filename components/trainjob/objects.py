"""TrainJob objects: ``trainer.kubeflow.org/v1alpha1`` of Kubeflow Trainer v2."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from qatline.components.trainjob.task import TASK_VARIABLE, JobTemplate, WorkerTask, to_json
from qatline.components.trainjob.tf_config import WORKERS_VARIABLE

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
NODE = "node"
"""Name of the replicated job and of its container, in the runtime and in overrides."""

RUN_LABEL, STEP_LABEL = "qatline/run", "qatline/step"
TASK_ANNOTATION = "qatline/task"
FORMS = ("runtimePatches", "podTemplateOverrides", "podSpecOverrides")
"""TrainJob fields that modify the runtime's pods, in Trainer 2.2, 2.1 and 2.0."""

COMMAND = ("python", "-m", "qatline.components.runtime.train_job_worker")
_MANAGER = "qatline.io/launcher"


def job_name(run: str, step: str) -> str:
    """Return the TrainJob's name, equal for each attempt of a step in one pipeline run.

    JobSet appends suffixes to the names of pods; together they must not exceed 63 characters.

    Examples:
        >>> job_name("1f2e", "train_baseline")
        'qatline-train-baseline-5f3a619946'
    """
    # The separator keeps ("ab", "c") and ("a", "bc") apart.
    digest = hashlib.sha256(f"{run}\0{step}".encode()).hexdigest()[:10]
    return f"qatline-{step.replace('_', '-')[:24]}-{digest}"


def train_job(
    template: JobTemplate,
    task: WorkerTask,
    *,
    run: str,
    environment: Mapping[str, str],
    form: str,
) -> dict[str, Any]:
    """Return the TrainJob of a step.

    Args:
        template: TrainJob template of the compiled pipeline.
        task: task of each worker.
        run: id of the pipeline run.
        environment: further variables of the workers, known only at run time.
        form: entry of ``FORMS`` that modifies the runtime's pods.
    """
    variables = {**environment, WORKERS_VARIABLE: str(template.nodes), TASK_VARIABLE: to_json(task)}
    env = [item for item in template.env if item["name"] not in variables]
    for name, value in variables.items():
        # Kubernetes expands $(NAME) in values; $$ is a literal $.
        env.append({"name": name, "value": value.replace("$", "$$")})
    trainer: dict[str, Any] = {
        "image": template.image,
        "command": list(COMMAND),
        "numNodes": template.nodes,
        "env": env,
    }
    if template.resources:
        trainer["resourcesPerNode"] = template.resources
    spec: dict[str, Any] = {
        "runtimeRef": {"apiGroup": GROUP, "kind": template.runtime_kind, "name": template.runtime},
        "trainer": trainer,
    }
    if pod := _pod_changes(template):
        spec[form] = [_OVERRIDES[form](pod)]
    labels = {RUN_LABEL: run, STEP_LABEL: task.step, "app.kubernetes.io/managed-by": "qatline"}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainJob",
        "metadata": {
            "name": job_name(run, task.step),
            "labels": {**template.labels, **labels},
            "annotations": {TASK_ANNOTATION: task.digest},
        },
        "spec": spec,
    }


def _pod_changes(template: JobTemplate) -> dict[str, Any]:
    """Return the differences of the pods from those of the runtime, as a pod spec."""
    pod = dict(template.pod)
    if template.mounts:
        pod["containers"] = [{"name": NODE, "volumeMounts": template.mounts}]
    return pod


def _runtime_patch(pod: Mapping[str, Any]) -> dict[str, Any]:
    template = {"spec": {"template": {"spec": dict(pod)}}}
    jobs = [{"name": NODE, "template": template}]
    patch = {"template": {"spec": {"replicatedJobs": jobs}}}
    return {"manager": _MANAGER, "trainingRuntimeSpec": patch}


def _template_override(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {"targetJobs": [{"name": NODE}], "spec": dict(pod)}


def _spec_override(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {"targetJobs": [{"name": NODE}], **pod}


_OVERRIDES = {
    "runtimePatches": _runtime_patch,
    "podTemplateOverrides": _template_override,
    "podSpecOverrides": _spec_override,
}
