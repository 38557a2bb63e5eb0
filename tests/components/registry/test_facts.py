"""Tags and description of a registered version."""

from __future__ import annotations

from typing import Any

import pytest

from qatline.components.artifacts.promotion import Reason, Verdict
from qatline.components.artifacts.result_row import ResultRow
from qatline.components.registry.facts import ModelFacts, name_of_run, tag_number, this_user

ROW = ResultRow(accuracy=0.9123456, latency_ms_p50=0.512, bytes=1000, backend="openvino")
REJECTED = Verdict(
    verdict="reject",
    reasons=(
        Reason(check="chance", passed=True, message="Better than chance."),
        Reason(check="champion_gain", passed=False, message="Against the champion: no gain."),
    ),
    champion="abc",
    evaluation="e1",
)


def facts(**values: Any) -> ModelFacts:
    given = {"row": ROW, "target": "openvino", "data": "f" * 64, "samples": 360, **values}
    return ModelFacts(**given)


def test_tags_say_what_a_version_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QATLINE_RUN", "20261122-031500-ab12")
    monkeypatch.setenv("QATLINE_INPUTS", "i" * 64)
    tags = facts(framework="keras").tags(REJECTED)
    assert tags == {
        "qatline.run": "20261122-031500-ab12",
        "qatline.verdict": "reject",
        "qatline.failed": "champion_gain",
        "qatline.better_than_chance": "true",
        "qatline.evaluation": "e1",
        "qatline.judged_against": "abc",
        "qatline.backend": "openvino",
        "qatline.target": "openvino",
        "qatline.data": "f" * 64,
        "qatline.framework": "keras",
        "qatline.inputs": "i" * 64,
        "qatline.quality": "0.912346",
        "qatline.metric": ROW.metric.model_dump_json(),
        "qatline.latency_ms": "0.512",
        "qatline.engine_bytes": "1000",
    }


def test_tags_count_an_unmade_test_as_chance() -> None:
    tags = facts().tags(Verdict(verdict="promote"))
    assert tags["qatline.better_than_chance"] == "false"
    assert tags["qatline.failed"] == ""
    assert tags["qatline.judged_against"] == "none"


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("openvino", "a model for CPUs, not for TensorRT"),
        ("onnxruntime", "a model for CPUs, not for TensorRT"),
        ("tensorrt", "it runs in every backend"),
        ("", "is unknown"),
    ],
)
def test_description_says_where_a_model_runs(target: str, sentence: str) -> None:
    assert sentence in facts(target=target).describe(REJECTED)


def test_description_has_figures_and_verdict() -> None:
    text = facts(model="resnet").describe(REJECTED)
    assert "resnet in INT8" in text
    assert "Accuracy 91.23% on 360 test samples; latency at batch 1 0.512 ms with openvino." in text
    assert (
        "Verdict: reject. Against the champion: no gain. Try `qatline compare`. Better than chance."
    ) in text


def test_run_name_is_that_of_the_cluster_where_there_is_no_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("QATLINE_RUN", raising=False)
    assert name_of_run() == ""
    monkeypatch.setenv("QATLINE_PIPELINE_RUN_ID", "kfp-1")
    assert name_of_run() == "kfp-1"


@pytest.mark.parametrize(("text", "number"), [("0.5", 0.5), ("x", None), (None, None)])
def test_tag_number_reads_numbers_only(text: str | None, number: float | None) -> None:
    assert tag_number({} if text is None else {"a": text}, "a") == number


def test_this_user_names_the_machine() -> None:
    assert " on " in this_user()
