"""Outputs of a step that Kubeflow displays: metrics, confusion matrix, page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from qatline.components.artifacts import Evaluation
from qatline.components.step_table import Step

MOST_CLASSES = 100
"""Maximum number of classes of a displayed confusion matrix: KFP sends it in one JSON message."""


class MetricsArtifact(Protocol):
    """The methods of ``kfp.dsl.Metrics`` that a step uses."""

    def log_metric(self, metric: str, value: float) -> None:
        """Add a number to the artifact's metadata."""


class ConfusionArtifact(Protocol):
    """The methods of ``kfp.dsl.ClassificationMetrics`` that a step uses."""

    def log_confusion_matrix(self, categories: list[str], matrix: list[list[int]]) -> None:
        """Add a matrix to the artifact's metadata; it has one row per label."""


def show_metrics(metrics: Mapping[str, float], artifact: MetricsArtifact | None) -> None:
    """Add the metrics of a step to its artifact."""
    for name, value in metrics.items():
        if artifact is not None:
            artifact.log_metric(name, value)


def show_outputs(
    step: Step,
    output: Path,
    *,
    page: str,
    confusion: ConfusionArtifact | None,
    warn: Callable[[str], None],
) -> None:
    """Display the step's page and its confusion matrix.

    Args:
        step: entry of the step table.
        output: its output directory.
        page: destination of the page; empty for none.
        confusion: artifact for the confusion matrix.
        warn: receives a warning if the matrix is too large.

    Raises:
        StepError: the measurements cannot be read.
    """
    if page:
        shutil.copyfile(output / step.page, page)
    if not step.confusion or confusion is None:
        return
    measured = Evaluation(output).measurements()
    classes = [str(group.name) for group in measured.groups]
    matrix = measured.details.get(step.confusion, {}).get("confusion")
    if matrix is None:
        return
    if len(classes) > MOST_CLASSES:
        warn(
            f"the confusion matrix of {len(classes)} classes is not shown in Kubeflow, which takes "
            f"up to {MOST_CLASSES}; it is in {Evaluation.MEASUREMENTS}"
        )
        return
    confusion.log_confusion_matrix(classes, [list(map(int, row)) for row in matrix])
