"""What Kubeflow shows of a step: its metrics, a confusion matrix, a page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from qatline.components.artifacts import Evaluation
from qatline.components.step_table import Step

MOST_CLASSES = 100
"""Classes of the largest confusion matrix that is shown: it travels as JSON in one message."""


class MetricsArtifact(Protocol):
    """The part of ``kfp.dsl.Metrics`` that a step needs."""

    def log_metric(self, metric: str, value: float) -> None:
        """Put one number into the artifact's metadata."""


class ConfusionArtifact(Protocol):
    """The part of ``kfp.dsl.ClassificationMetrics`` that a step needs."""

    def log_confusion_matrix(self, categories: list[str], matrix: list[list[int]]) -> None:
        """Put a matrix into the artifact's metadata: a row for each label."""


def show_metrics(metrics: Mapping[str, float], artifact: MetricsArtifact | None) -> None:
    """Put the metrics of a step into its artifact."""
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
    """Show the step's page and its confusion matrix.

    Args:
        step: entry of the table; says what there is to show.
        output: its output directory.
        page: where the page goes; empty for nowhere.
        confusion: where the confusion matrix goes.
        warn: told when the matrix is too large.

    Raises:
        StepError: the measurements can't be read.
    """
    if page:
        shutil.copyfile(output / step.page, page)
    if not step.confusion or confusion is None:
        return
    measured = Evaluation(output).measurements()
    classes = list(map(str, measured.classes))
    matrix = measured.confusion.get(step.confusion)
    if matrix is None:
        return
    if len(classes) > MOST_CLASSES:
        warn(
            f"the confusion matrix of {len(classes)} classes is not shown in Kubeflow, which takes "
            f"up to {MOST_CLASSES}; it is in {Evaluation.MEASUREMENTS}"
        )
        return
    confusion.log_confusion_matrix(classes, _plain(matrix))


def _plain(matrix: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(map(int, row)) for row in matrix]
