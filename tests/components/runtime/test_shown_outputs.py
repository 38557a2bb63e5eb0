"""What Kubeflow shows of a step."""

from pathlib import Path

import pytest
from kfp import dsl

from qat_lib.errors import StepError
from qatline.components.artifacts import Evaluation
from qatline.components.artifacts.evaluation import GroupQuality, Measurements
from qatline.components.runtime.shown_outputs import MOST_CLASSES, show_metrics, show_outputs
from qatline.components.step_table import STEP_BY_NAME, Step

EVALUATE = STEP_BY_NAME["evaluate"]


def evaluation(folder: Path, classes: int, row: str = "qat_engine") -> Path:
    matrix = [[int(i == j) for j in range(classes)] for i in range(classes)]
    groups = [GroupQuality(name=f"class {index}") for index in range(classes)]
    measured = Measurements(groups=groups, details={row: {"confusion": matrix}})
    Evaluation(folder).write_measurements(measured)
    return folder


def shown(folder: Path, step: Step = EVALUATE) -> tuple[dict[str, object], list[str]]:
    artifact = dsl.ClassificationMetrics(name="confusion", uri="x", metadata={})
    warnings: list[str] = []
    show_outputs(step, folder, page="", confusion=artifact, warn=warnings.append)
    return artifact.metadata, warnings


def test_confusion_matrix_of_the_candidate_is_shown(tmp_path: Path) -> None:
    metadata, warnings = shown(evaluation(tmp_path, 3))
    assert metadata == {
        "confusionMatrix": {
            "annotationSpecs": [{"displayName": f"class {index}"} for index in range(3)],
            "rows": [{"row": [1, 0, 0]}, {"row": [0, 1, 0]}, {"row": [0, 0, 1]}],
        }
    }
    assert warnings == []


def test_large_matrices_are_left_out_with_a_warning(tmp_path: Path) -> None:
    assert shown(evaluation(tmp_path, MOST_CLASSES))[1] == []
    metadata, (warning,) = shown(evaluation(tmp_path, MOST_CLASSES + 1))
    assert metadata == {}
    assert "the confusion matrix of 101 classes is not shown in Kubeflow" in warning


def test_without_the_candidates_matrix_nothing_is_shown(tmp_path: Path) -> None:
    assert shown(evaluation(tmp_path, 3, row="fp32"))[0] == {}
    assert shown(tmp_path, STEP_BY_NAME["promote"])[0] == {}


def test_damaged_measurements_are_told(tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(StepError, match=r"evaluation\.json can't be read"):
        shown(tmp_path)


def test_page_is_copied(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<p>")
    page = tmp_path / "page.html"
    step = STEP_BY_NAME["promote"]
    show_outputs(step, tmp_path, page=str(page), confusion=None, warn=print)
    assert page.read_text() == "<p>"


def test_show_metrics_needs_no_artifact() -> None:
    artifact = dsl.Metrics(name="metrics", uri="x", metadata={})
    show_metrics({"accuracy": 0.5}, artifact)
    show_metrics({"accuracy": 0.5}, None)
    assert artifact.metadata == {"accuracy": 0.5}
