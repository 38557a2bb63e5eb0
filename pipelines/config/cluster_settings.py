"""``cluster`` section: pods, images and service account of a run on a cluster.

The section describes the location of the pipeline and does not affect results. It is therefore
neither a parameter of the pipeline nor part of a cache key, and local runs ignore it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, create_model, field_validator, model_validator

from qatline.components.settings import Settings
from qatline.components.step_table import STEPS
from qatline.pipelines.config.kubernetes_values import (
    BucketAddress,
    Image,
    ObjectName,
    ResourceName,
    Seconds,
    WebAddress,
)
from qatline.pipelines.config.pod_settings import StepResources, check_pod

_OVERRIDES: dict[str, Any] = {
    step.name: (StepResources | None, Field(None, description=step.help or None)) for step in STEPS
}
ClusterSteps = create_model(
    "ClusterSteps", __base__=Settings, __doc__="Overrides by step.", **_OVERRIDES
)


class ImageSettings(Settings):
    """Container images of the steps, and additional content."""

    train: Image | None = Field(
        None, description="Image of the steps that need TensorFlow. Default: QATLINE_IMAGE."
    )
    engine: Image | None = Field(
        None,
        description="Image of build_engine, evaluate, promote. Default: QATLINE_ENGINE_IMAGE.",
    )
    modules: list[str] = Field(
        default_factory=list,
        description="Python modules of yours in the images (qatline cluster image).",
    )
    files: list[str] = Field(
        default_factory=list,
        description="Files and folders of yours in the images (qatline cluster image).",
    )
    tensorrt: Annotated[str, Field(pattern=r"^\d+(\.\d+)+$")] | None = Field(
        None, description="TensorRT version in the image engine (qatline cluster image)."
    )

    @field_validator("modules")
    @classmethod
    def _are_modules(cls, modules: list[str]) -> list[str]:
        for name in modules:
            if not name.isidentifier():
                raise ValueError(
                    f"expected names of top-level modules, such as my_networks, received {name!r}"
                )
        return modules


class TrainJobSettings(Settings):
    """TrainJobs of Kubeflow Trainer, one for each training step with several workers."""

    runtime: ObjectName = Field(
        "qatline-tensorflow", description="Name of the training runtime (qatline cluster runtime)."
    )
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = Field(
        "ClusterTrainingRuntime",
        description="Kind of the runtime: of the cluster, or of the run's namespace.",
    )
    service_account: ObjectName | None = Field(
        None, description="Service account of the workers. Default: the namespace's."
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="Labels of the TrainJobs, such as kueue.x-k8s.io/queue-name.",
    )
    keep: Literal["failed", "always", "never"] = Field(
        "failed", description="Ended TrainJobs to keep in the cluster."
    )


class ClusterSettings(StepResources):
    """Pod settings, overridable for each step in ``steps`` with the same keys.

    They apply to a compiled pipeline.
    """

    accelerator_type: ResourceName = Field(
        "nvidia.com/gpu", description="Name of the accelerator among a node's resources."
    )
    images: ImageSettings = Field(default_factory=lambda: ImageSettings.model_validate({}))
    service_account: ObjectName | None = Field(
        None,
        description="Service account of the run's pods; submit and schedule send it. Default: the server's.",
    )
    pipeline_root: BucketAddress | None = Field(
        None, description="Object store folder of the artifacts. Default: the server's."
    )
    train_job: TrainJobSettings = Field(default_factory=TrainJobSettings)
    run_timeout: Seconds | None = Field(
        None, description="Longest time of a whole run, such as 12h (servers from 2.17 on)."
    )
    webhook: WebAddress | None = Field(
        None,
        description=(
            "Address for a notification at the end of a run. If it is a secret, set QATLINE_WEBHOOK "
            "by secret_env instead."
        ),
    )
    steps: ClusterSteps = Field(default_factory=ClusterSteps)

    def of(self, step: str) -> StepResources:
        """Return the pod settings of ``step``: its keys override the section's."""
        own: StepResources = getattr(self.steps, step) or StepResources()
        missing = [name for name in StepResources.model_fields if getattr(own, name) is None]
        return own.model_copy(update={name: getattr(self, name) for name in missing})

    def at_exit(self) -> StepResources:
        """Return the pod settings of the exit task, without resources and volumes."""
        names = ("env", "secret_env", "node_selector", "tolerations", "retry")
        images = ("image_pull_secrets", "image_pull_policy")
        return StepResources(**{name: getattr(self, name) for name in (*names, *images)})

    @model_validator(mode="after")
    def _can_be_met(self) -> ClusterSettings:
        check_pod("cluster", self)
        for step in ClusterSteps.model_fields:
            own: StepResources | None = getattr(self.steps, step)
            if own is None:
                continue
            resources = self.of(step)
            check_pod(f"cluster.steps.{step}", resources)
            if own.accelerator_type is not None and resources.accelerator_count is None:
                raise ValueError(
                    f"cluster.steps.{step}: expected accelerator_count with accelerator_type="
                    f"{own.accelerator_type}, received none; without it the pod gets no accelerator"
                )
        return self
