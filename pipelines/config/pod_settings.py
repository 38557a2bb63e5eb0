"""Settings of one step's pod: resources, node, environment, volumes, attempts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from qatline.components.settings import Settings
from qatline.components.settings.config_values import SECRET_REFERENCES
from qatline.pipelines.config.kubernetes_values import (
    Cpu,
    Memory,
    MountPath,
    ObjectName,
    ResourceName,
    Seconds,
    SecretKey,
    Variable,
    amount,
)

_FROM_TRACKING = frozenset({"MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "QATLINE_TRACKING"})
_FROM_CLUSTER = frozenset({"QATLINE_PIPELINE_RUN_ID"})


class Toleration(Settings):
    """A taint of a node that a pod tolerates."""

    key: str
    operator: Literal["Exists", "Equal"] | None = Field(
        None, description="Default: Equal with a value, else Exists."
    )
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Default: all."
    )

    @model_validator(mode="after")
    def _agrees(self) -> Toleration:
        if self.operator is not None and (self.operator == "Equal") is (self.value is None):
            raise ValueError(
                "expected a value with the operator Equal and none with Exists, received "
                f"{self.operator} with value {self.value!r}"
            )
        return self


class Volume(Settings):
    """A PersistentVolumeClaim that is mounted into a pod."""

    claim: ObjectName = Field(description="Name of the claim in the run's namespace.")
    path: MountPath = Field(description="Folder in the pod.")
    sub_path: str = Field("", description="Folder in the volume. Default: all of it.")


class Retry(Settings):
    """Further attempts of a failed step, each after a longer wait."""

    limit: int = Field(ge=0, le=100, description="Further attempts.")
    backoff: Seconds = Field(60, description="Wait before the first of them.")
    factor: float = Field(2.0, ge=1, le=100, description="Ratio of each wait to the one before.")
    max_duration: Seconds = Field(
        604_800, description="No attempt starts later than this after the first one."
    )


class StepResources(Settings):
    """Pod settings of one step; a missing key defaults to the section's."""

    cpu: Cpu | None = Field(None, description="CPU request, such as 4 or 500m.")
    cpu_limit: Cpu | None = Field(None, description="CPU limit.")
    memory: Memory | None = Field(None, description="Memory request, such as 16Gi.")
    memory_limit: Memory | None = Field(None, description="Memory limit.")
    accelerator_type: ResourceName | None = Field(
        None, description="Name of the accelerator among a node's resources."
    )
    accelerator_count: int | None = Field(
        None, ge=0, description="Accelerators of the pod; 0 = none."
    )
    node_selector: dict[str, str] | None = Field(
        None, description="Node selector: labels of the node."
    )
    tolerations: list[Toleration] | None = Field(
        None,
        description="Tolerated taints of the node, each with key, operator, value and effect.",
    )
    env: dict[Variable, str] | None = Field(
        None,
        description="Non-secret environment variables: AWS_ENDPOINT_URL_S3: https://...",
    )
    secret_env: dict[Variable, SecretKey] | None = Field(
        None,
        description=(
            "Environment variables from Kubernetes secrets: MLFLOW_TRACKING_PASSWORD: secret/key."
        ),
        json_schema_extra=SECRET_REFERENCES,
    )
    volumes: list[Volume] | None = Field(
        None, description="Mounted PersistentVolumeClaims, each with claim, path and sub_path."
    )
    image_pull_secrets: list[ObjectName] | None = Field(
        None, description="Kubernetes secrets for the registry of the images."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="When a node pulls the image. Default: Kubernetes's."
    )
    timeout: Seconds | None = Field(
        None, description="Longest time of one attempt, such as 90m or 2h; then it fails."
    )
    retry: Retry | None = Field(
        None,
        description="Further attempts of a failed step: limit, backoff, factor, max_duration.",
    )

    @property
    def accelerator(self) -> str | None:
        """The pod's accelerator type; None without accelerators."""
        return self.accelerator_type if self.accelerator_count else None


def check_pod(place: str, pod: StepResources) -> None:
    """Check the combination of one pod's settings.

    Args:
        place: path of the settings in the config.
        pod: the settings, with the section's defaults.

    Raises:
        ValueError: a cluster would reject the pod, or one setting would hide another.
    """
    for name in ("cpu", "memory"):
        request, limit = getattr(pod, name), getattr(pod, f"{name}_limit")
        if request is not None and limit is not None and amount(request) > amount(limit):
            raise ValueError(
                f"{place}: expected {name} of at most {name}_limit={limit}, received {request}; "
                "a cluster refuses such a pod"
            )
    _check_environment(place, pod)
    paths = [volume.path for volume in pod.volumes or ()]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise ValueError(
            f"{place}.volumes: expected a different folder for each, received {twice[0]} twice"
        )


def _check_environment(place: str, pod: StepResources) -> None:
    plain, secret = set(pod.env or ()), set(pod.secret_env or ())
    if both := sorted(plain & secret):
        raise ValueError(
            f"{place}: expected {both[0]} in env or in secret_env, received it in both"
        )
    if derived := sorted((plain | secret) & _FROM_TRACKING):
        raise ValueError(
            f"{place}: expected the section tracking to set {derived[0]}, received it as a "
            "variable; set tracking.uri, tracking.experiment or tracking.required"
        )
    if derived := sorted((plain | secret) & _FROM_CLUSTER):
        raise ValueError(
            f"{place}: expected Kubeflow to set {derived[0]}, received it as a variable; remove it"
        )
