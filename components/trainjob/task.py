"""What a TrainJob is told: the step its workers run, and the pods they run in."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from qat_lib.errors import ConfigError

TASK_VARIABLE = "QATLINE_WORKER_TASK"
TEMPLATE_VARIABLE = "QATLINE_TRAIN_JOB"
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """One execution of a step, the same for each worker.

    Args:
        step: Name of the step.
        settings: Sections that it reads, as plain values.
        seed: Seed of the run.
        inputs: Kubeflow's address of each input directory, by the name of the parameter.
        output: Kubeflow's address of the output directory.
    """

    step: str
    settings: dict[str, Any]
    seed: int
    inputs: dict[str, str]
    output: str

    @property
    def digest(self) -> str:
        """Short digest of all of it: two equal tasks have the same one."""
        return hashlib.sha256(to_json(self).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class JobTemplate:
    """The TrainJob of a step, as the compiled pipeline says it.

    Args:
        nodes: Number of workers.
        image: Container image.
        runtime: Name of the training runtime.
        runtime_kind: Kind of that: of the cluster or of the namespace.
        resources: Kubernetes resources of each worker: ``requests`` and ``limits``.
        env: Kubernetes environment variables of each worker.
        pod: What the pods differ in from the runtime's, in the words of a Kubernetes pod spec.
        mounts: Mounted volumes of the container.
        labels: Labels of the TrainJob, such as the name of a Kueue queue.
        keep: Which ended TrainJobs are left in the cluster.
    """

    nodes: int
    image: str
    runtime: str
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"]
    resources: dict[str, dict[str, str]] = field(default_factory=dict)
    env: list[dict[str, Any]] = field(default_factory=list)
    pod: dict[str, Any] = field(default_factory=dict)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    keep: Literal["failed", "always", "never"] = "failed"


def to_json(value: WorkerTask | JobTemplate) -> str:
    """Return the JSON text of a task or template; equal values have the same text."""
    return json.dumps(asdict(value), sort_keys=True)


def read_variable(name: str, kind: type[_T], environment: Mapping[str, str] | None = None) -> _T:
    """Read a task or template from an environment variable.

    Args:
        name: Name of the variable.
        kind: ``WorkerTask`` or ``JobTemplate``.
        environment: Environment variables. Default: ``os.environ``.

    Raises:
        ConfigError: It is missing, or holds something else.
    """
    text = (os.environ if environment is None else environment).get(name, "")
    try:
        value: _T = TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        raise ConfigError(
            f"{name}: expected a {kind.__name__} as JSON, received {text[:80]!r} ({first['msg']}). "
            "Compile the pipeline again with the version of qatline that the images hold."
        ) from error
    return value
