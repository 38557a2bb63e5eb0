"""Settings of TrainJobs, for training steps with several workers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qatline.components.settings import Settings
from qatline.pipelines.config.kubernetes_values import ObjectName


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
        "failed", description="Ended TrainJobs that stay in the cluster."
    )
