"""Content of a TrainJob: the step of its workers, and their pods."""

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
    """Execution of a step, equal for all workers.

    Args:
        step: name of the step.
        settings: sections that the step reads, as plain values.
        seed: seed of the run.
        inputs: Kubeflow's URI of each input directory by parameter name.
        output: Kubeflow's URI of the output directory.
    """

    step: str
    settings: dict[str, Any]
    seed: int
    inputs: dict[str, str]
    output: str

    @property
    def digest(self) -> str:
        """Short digest of the task; equal tasks have equal digests."""
        return hashlib.sha256(to_json(self).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class JobTemplate:
    """TrainJob template of a step in the compiled pipeline.

    Args:
        nodes: number of workers.
        image: container image.
        runtime: name of the training runtime.
        runtime_kind: kind of the runtime, cluster-wide or namespaced.
        resources: Kubernetes resources of each worker: ``requests`` and ``limits``.
        env: Kubernetes environment variables of each worker.
        pod: differences of the pods from those of the runtime, as a Kubernetes pod spec.
        mounts: mounted volumes of the container.
        labels: labels of the TrainJob, such as the name of a Kueue queue.
        keep: ended TrainJobs to keep in the cluster.
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
    """Return the JSON text of a task or template; equal values have equal texts."""
    return json.dumps(asdict(value), sort_keys=True)


def read_variable(name: str, kind: type[_T], environment: Mapping[str, str] | None = None) -> _T:
    """Read a task or template from an environment variable.

    Args:
        name: name of the variable.
        kind: ``WorkerTask`` or ``JobTemplate``.
        environment: environment variables. Default: ``os.environ``.

    Raises:
        ConfigError: the variable is missing or has another content.
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
