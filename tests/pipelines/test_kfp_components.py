from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from qatline.components.runtime.steps import define_step, load_step
from qatline.components.settings import QATSettings
from qatline.components.step_table import STEP_BY_NAME, STEPS, Step
from qatline.components.support.events import Progress
from qatline.pipelines.kfp_components import (
    component_of,
    component_source,
    make_component,
    section_of,
)


def measure(
    onnx: Path, mine: Path | None = None, *, out: Path, qat: QATSettings, progress: Progress
) -> dict[str, float]:
    return {}


def function(source: str) -> ast.FunctionDef:
    (found,) = ast.parse(source).body
    assert isinstance(found, ast.FunctionDef)
    return found


def test_component_source_follows_the_signature() -> None:
    step = Step(name="measure", artifact="sizes", kind="Model", page="page.html")
    found = function(component_source(step, define_step("measure", measure)))
    assert {
        each.arg: ast.unparse(each.annotation or ast.Constant(0)) for each in found.args.args
    } == {
        "onnx": "dsl.Input[dsl.Model]",
        "sizes": "dsl.Output[dsl.Model]",
        "report": "dsl.Output[dsl.HTML]",
        "metrics": "dsl.Output[dsl.Metrics]",
        "qat": "dict",
        "seed": "int",
        "mine": "dsl.Input[dsl.Artifact]",
    }
    assert [ast.unparse(value) for value in found.args.defaults] == ["{}", "0", "None"]


def test_component_source_hands_everything_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from qatline.components.runtime import step as runtime

    asked: list[Any] = []
    monkeypatch.setattr(runtime, "run_component", lambda *names, **values: asked.append(values))
    step = Step(name="measure", artifact="qat", page="page.html")
    source = component_source(step, define_step("measure", measure))
    scope: dict[str, Any] = {}
    exec("from kfp import dsl\n" + source, scope)
    place = type("Artifact", (), {"path": "/there"})()
    given = {"onnx": place, "qat": place, "report": place, "metrics": "metrics"}
    scope["measure_component"](**given, qat_settings={"epochs": 1}, seed=4)
    scope["measure_component"](**given, mine=place)
    assert asked[0] == {
        "settings": {"qat": {"epochs": 1}},
        "seed": 4,
        "inputs": {"onnx": "/there"},
        "output": "/there",
        "metrics_artifact": "metrics",
        "page": "/there",
    }
    assert asked[1]["inputs"] == {"onnx": "/there", "mine": "/there"}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_component_matches_its_step_function(step: Step) -> None:
    spec, definition = component_of(step).component_spec, load_step(step.name)
    sections = {section_of(name) for name in spec.inputs if name not in definition.inputs}
    assert set(definition.inputs) < set(spec.inputs)
    assert sections == {*definition.sections, "seed"}
    shown = {"report"} if step.page else set()
    shown |= {"confusion"} if step.confusion else set()
    assert set(spec.outputs) == {step.artifact, "metrics", *shown}
    assert spec.outputs[step.artifact].type == f"system.{step.kind}@0.0.1"


def test_promote_component_outputs_verdict_report_metrics() -> None:
    spec = component_of(STEP_BY_NAME["promote"]).component_spec
    assert set(spec.outputs) == {"promotion", "report", "metrics"}
    assert spec.outputs["report"].type == "system.HTML@0.0.1"


def test_make_component_keeps_its_text_for_kfp() -> None:
    step = Step(name="measure", artifact="sizes", image="engine")
    component = make_component(step, define_step("measure", measure))
    container = component.component_spec.implementation.container
    assert "engine" in container.image
    assert "def measure_component(" in container.command[-1]


def test_evaluate_component_outputs_a_confusion_matrix() -> None:
    spec = component_of(STEP_BY_NAME["evaluate"]).component_spec
    assert spec.outputs["confusion"].type == "system.ClassificationMetrics@0.0.1"


def test_artifacts_have_types_that_the_ui_knows() -> None:
    kinds = {step.artifact: step.kind for step in STEPS}
    assert kinds == {
        "dataset": "Dataset",
        "baseline": "Model",
        "ptq": "Model",
        "qat": "Model",
        "onnx": "Model",
        "engines": "Model",
        "evaluation": "Artifact",
        "promotion": "Artifact",
    }


def test_launched_component_hands_addresses_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from qatline.components.runtime import train_job_component as component

    asked: list[Any] = []
    monkeypatch.setattr(
        component, "run_as_train_job", lambda *names, **values: asked.append((names, values))
    )
    step = Step(name="measure", artifact="qat")
    source = component_source(step, define_step("measure", measure), launched=True)
    scope: dict[str, Any] = {}
    exec("from kfp import dsl\n" + source, scope)
    place = type("Artifact", (), {"path": "/there", "uri": "s3://bucket/there"})()
    scope["measure_component"](onnx=place, qat=place, metrics="metrics", mine=place, seed=4)
    assert asked == [
        (
            ("measure",),
            {
                "settings": {"qat": {}},
                "seed": 4,
                "inputs": {"onnx": "s3://bucket/there", "mine": "s3://bucket/there"},
                "output": "/there",
                "output_uri": "s3://bucket/there",
                "metrics_artifact": "metrics",
            },
        )
    ]


@pytest.mark.parametrize("name", ["train_baseline", "finetune_qat"])
def test_launched_component_has_the_interface_of_its_step(name: str) -> None:
    alone = component_of(STEP_BY_NAME[name]).component_spec
    launched = component_of(STEP_BY_NAME[name], launched=True).component_spec
    assert launched.inputs == alone.inputs
    assert launched.outputs == alone.outputs
    assert "run_as_train_job" in launched.implementation.container.command[-1]
