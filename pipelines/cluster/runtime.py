"""Cluster resources for training steps with several workers: a runtime and a role."""

from __future__ import annotations

from pathlib import Path
from string import Template

from qatline.components.support.images import IMAGE
from qatline.pipelines.config.cluster_settings import ClusterSettings

_MANIFESTS = Path(__file__).with_name("manifests") / "runtime.yaml"


def runtime_manifests(
    cluster: ClusterSettings, *, namespace: str = "kubeflow", account: str = ""
) -> str:
    """Return the training runtime and the role of the launchers as YAML text.

    Args:
        cluster: name and kind of the runtime, image and service account.
        namespace: namespace of the pipeline runs.
        account: service account of the pipeline runs. Default: that of the section, else
            ``pipeline-runner``, the account of a single-user Kubeflow Pipelines server.
    """
    job = cluster.train_job
    namespaced = job.runtime_kind == "TrainingRuntime"
    return Template(_MANIFESTS.read_text(encoding="utf-8")).substitute(
        kind=job.runtime_kind,
        runtime=job.runtime,
        place=f"\n  namespace: {namespace}" if namespaced else "",
        image=cluster.images.train or IMAGE,
        namespace=namespace,
        account=account or cluster.service_account or "pipeline-runner",
    )
