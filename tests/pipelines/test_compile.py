"""The compiled pipeline: the same as the committed one, valid for the IR's schemas, whole as a graph."""

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.compile import compile_pipeline, pipeline_ir
from pipelines.config import load_config
from pipelines.ir_check import check_ir, graph_problems
from pipelines.launch import step_names
from pipelines.steps import STEP_ARTIFACTS
from qat_lib.errors import ConfigError, ExportError

GOLDEN = Path(__file__).parent / "golden" / "qatline.yaml"


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    (document,) = yaml.safe_load_all(pipeline_ir(load_config()))
    return document  # type: ignore[no-any-return]


def test_the_compiled_pipeline_is_the_committed_one(tmp_path: Path) -> None:
    from kfp import compiler

    from pipelines.qat_pipeline import qat_pipeline

    path = tmp_path / "pipeline.yaml"
    compiler.Compiler().compile(qat_pipeline, str(path))
    text = "".join(line for line in path.read_text().splitlines(True) if not line.startswith("sdkVersion"))
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert yaml.safe_load(text) == yaml.safe_load(GOLDEN.read_text()), (
        "The compiled pipeline changed. If that is meant: UPDATE_GOLDEN=1 pytest tests/pipelines/test_compile.py"
    )


def test_config_becomes_the_defaults_of_the_parameters(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    compile_pipeline(load_config(overrides=["training.epochs=3", "seed=5"]), path)
    parameters = yaml.safe_load(path.read_text())["root"]["inputDefinitions"]["parameters"]
    assert parameters["training"]["defaultValue"]["epochs"] == 3
    assert parameters["seed"]["defaultValue"] == 5


def test_steps_come_in_order_and_each_hands_on_its_artifact(spec: dict[str, Any]) -> None:
    from pipelines.qat_pipeline import qat_pipeline

    assert step_names(qat_pipeline) == list(STEP_ARTIFACTS)
    for step, artifact in STEP_ARTIFACTS.items():
        outputs = spec["components"][f"comp-{step.replace('_', '-')}-component"]["outputDefinitions"]["artifacts"]
        assert artifact in outputs
        assert "metrics" in outputs


def test_steps_install_nothing_and_engine_steps_use_the_engine_image(spec: dict[str, Any]) -> None:
    for name, executor in spec["deploymentSpec"]["executors"].items():
        container = executor["container"]
        assert "pip install" not in " ".join(container["command"])
        assert "python" in container["image"]
        engine = name in ("exec-build-engine-component", "exec-evaluate-component", "exec-promote-component")
        assert ("engine" in container["image"]) is engine


def test_a_tracking_server_reaches_the_steps_of_a_cluster() -> None:
    text = pipeline_ir(load_config(overrides=["tracking.uri=http://mlflow:5000", "tracking.required=false"]))
    for executor in yaml.safe_load(text)["deploymentSpec"]["executors"].values():
        environment = {item["name"]: item["value"] for item in executor["container"]["env"]}
        assert environment == {
            "MLFLOW_TRACKING_URI": "http://mlflow:5000",
            "MLFLOW_EXPERIMENT_NAME": "qatline",
            "QATLINE_TRACKING": "optional",
        }


def test_a_local_store_does_not_reach_a_cluster() -> None:
    assert "MLFLOW" not in pipeline_ir(load_config(overrides=["tracking.uri=sqlite:///x.db"]))


def test_an_output_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Could not write"):
        compile_pipeline(load_config(), tmp_path / "missing" / "pipeline.yaml")


def test_the_same_config_gives_the_same_text_in_every_process() -> None:
    code = (
        "from pipelines.compile import *; from pipelines.config import load_config; print(pipeline_ir(load_config()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == pipeline_ir(load_config()) + "\n"


def test_a_cluster_may_not_reuse_a_step_where_caching_is_off() -> None:
    def caching(**options: bool) -> list[dict[str, Any]]:
        tasks = yaml.safe_load(pipeline_ir(load_config(), **options))["root"]["dag"]["tasks"]
        return [task["cachingOptions"] for task in tasks.values()]

    assert caching() == [{"enableCache": True}] * len(STEP_ARTIFACTS)
    assert caching(caching=False) == [{}] * len(STEP_ARTIFACTS)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("root", "colour"), "red", "pipeline"),
        (
            ("deploymentSpec", "executors", "exec-evaluate-component", "container", "colour"),
            "red",
            "executor exec-eval",
        ),
        (("components", "comp-evaluate-component", "executorLabel"), "nope", "refers to the executor nope"),
        (("root", "dag", "tasks", "promote-component", "componentRef", "name"), "nope", "refers to the component nope"),
        (("root", "dag", "tasks", "promote-component", "dependentTasks"), ["nope"], "refers to the task nope"),
        (("root", "dag", "tasks", "promote-component", "dependentTasks"), [], "without depending on them"),
    ],
)
def test_a_broken_pipeline_is_found(spec: dict[str, Any], path: tuple[str, ...], value: Any, message: str) -> None:
    broken = copy.deepcopy(spec)
    node = broken
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    with pytest.raises(ExportError, match=message):
        check_ir([broken])


def test_an_unknown_field_of_the_kubernetes_config_is_found(spec: dict[str, Any]) -> None:
    executors = {"exec-evaluate-component": {"nodeSelectorr": {"labels": {"gpu": "true"}}}}
    platform = {"platforms": {"kubernetes": {"deploymentSpec": {"executors": executors}}}}
    with pytest.raises(ExportError, match="kubernetes config of exec-evaluate-component"):
        check_ir([spec, platform])


def test_the_whole_graph_has_no_problem(spec: dict[str, Any]) -> None:
    assert list(graph_problems(spec)) == []
