"""The ``cluster`` section: resource requests of each step's pod.

It concerns the place where the pipeline runs and nothing of what a step computes, so it is no
parameter of the pipeline and part of no cache key; a run on this machine does not look at it.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, create_model, model_validator

from components.config_values import SECRET_REFERENCES
from components.settings import Settings
from components.steps import STEPS

_UNITS: dict[str, Decimal] = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("MGTPE", start=2)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}


def _cpu(value: Any) -> str:
    """Return a number of CPUs in Kubernetes notation.

    YAML parses ``4`` and ``0.5`` as numbers.
    """
    if not re.fullmatch(r"\d+m|\d+(\.\d{1,3})?", str(value)) or not _amount(str(value)):
        raise ValueError(
            f"expected a number of CPUs above 0, such as 4, 0.5 or 500m, received {value!r}"
        )
    return str(value)


def _memory(value: Any) -> str:
    """Return a size as Kubernetes and kfp both take it.

    A bare number would be bytes, which nobody means.
    """
    if not re.fullmatch(r"\d+([KMGTPE]i|[MGTPE])", str(value)) or not _amount(str(value)):
        raise ValueError(
            "expected a whole number above 0 with a unit, such as 512Mi or 16Gi, received "
            f"{value!r}"
        )
    return str(value)


def _resource_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", value):
        raise ValueError(
            "expected the name of a resource of the nodes (kubectl describe node), such as "
            f"nvidia.com/gpu, received {value!r}"
        )
    return value


def _amount(quantity: str) -> Decimal:
    number, unit = re.fullmatch(r"([\d.]+)(\D*)", quantity).groups()  # type: ignore[union-attr]
    return Decimal(number) * _UNITS[unit]


def _secret_key(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[\w.-]+", value):
        # The value is not shown: someone may have written the secret itself.
        raise ValueError(
            "expected a Kubernetes secret and its key, such as mlflow/password, received "
            "something else"
        )
    return value


def _variable(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", value):
        raise ValueError(f"expected the name of an environment variable, received {value!r}")
    return value


Cpu = Annotated[str, BeforeValidator(_cpu, json_schema_input_type=str | int | float)]
Memory = Annotated[str, BeforeValidator(_memory, json_schema_input_type=str)]
ResourceName = Annotated[str, AfterValidator(_resource_name)]
SecretKey = Annotated[str, AfterValidator(_secret_key)]
Variable = Annotated[str, AfterValidator(_variable)]


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


class StepResources(Settings):
    """Pod resources of one step; a missing key defaults to the section's."""

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

    secret_env: dict[Variable, SecretKey] | None = Field(
        None,
        description=(
            "Environment variables from Kubernetes secrets: MLFLOW_TRACKING_PASSWORD: secret/key."
        ),
        json_schema_extra=SECRET_REFERENCES,
    )

    @property
    def accelerator(self) -> str | None:
        """The pod's accelerator type; None without accelerators."""
        return self.accelerator_type if self.accelerator_count else None


_OVERRIDES: dict[str, Any] = {
    step.name: (StepResources | None, Field(None, description=step.help or None)) for step in STEPS
}
ClusterSteps = create_model(
    "ClusterSteps", __base__=Settings, __doc__="Overrides by step.", **_OVERRIDES
)


class ClusterSettings(StepResources):
    """Pod resources, overridable for each step in ``steps`` with the same keys.

    They apply to a compiled pipeline.
    """

    accelerator_type: ResourceName = Field(
        "nvidia.com/gpu", description="Name of the accelerator among a node's resources."
    )
    steps: ClusterSteps = Field(default_factory=ClusterSteps)

    def of(self, step: str) -> StepResources:
        """Return the pod resources of ``step``: its keys override the section's."""
        own: StepResources = getattr(self.steps, step) or StepResources()
        missing = [name for name in StepResources.model_fields if getattr(own, name) is None]
        return own.model_copy(update={name: getattr(self, name) for name in missing})

    @model_validator(mode="after")
    def _can_be_met(self) -> ClusterSettings:
        _check_limits("cluster", self)
        for step in ClusterSteps.model_fields:
            own: StepResources | None = getattr(self.steps, step)
            if own is None:
                continue
            resources = self.of(step)
            _check_limits(f"cluster.steps.{step}", resources)
            if own.accelerator_type is not None and resources.accelerator_count is None:
                raise ValueError(
                    f"cluster.steps.{step}: expected accelerator_count beside accelerator_type="
                    f"{own.accelerator_type}, received none; without it the pod gets no accelerator"
                )
        return self


def _check_limits(path: str, resources: StepResources) -> None:
    for name in ("cpu", "memory"):
        request, limit = getattr(resources, name), getattr(resources, f"{name}_limit")
        if request is not None and limit is not None and _amount(request) > _amount(limit):
            raise ValueError(
                f"{path}: expected {name} of at most {name}_limit={limit}, received {request}; "
                "a cluster refuses such a pod"
            )
