"""The compiled pipeline: equal to the golden file, schema-valid, connected."""

import copy
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from qat_lib.errors import ConfigError, ExportError
from qatline.pipelines.cluster.compile import compile_pipeline, pipeline_ir
from qatline.pipelines.cluster.ir_check import check_ir, graph_problems
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run.launch import step_names
from qatline.pipelines.steps import STEP_ARTIFACTS

GOLDEN = Path(__file__).parents[1] / "golden" / "qatline.yaml"
CONFIGS = sorted((GOLDEN.parent / "configs").glob("*.yaml"), key=lambda path: path.stem)
# A schedule's runs use no cache.
UNCACHED = frozenset({"retraining"})


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    (document,) = yaml.safe_load_all(pipeline_ir(load_config()))
    return document  # type: ignore[no-any-return]


def test_the_compiled_pipeline_is_the_committed_one(tmp_path: Path) -> None:
    from kfp import compiler

    from qatline.pipelines.qat_pipeline import qat_pipeline

    path = tmp_path / "pipeline.yaml"
    compiler.Compiler().compile(qat_pipeline, str(path))
    text = "".join(
        line for line in path.read_text().splitlines(True) if not line.startswith("sdkVersion")
    )
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert yaml.safe_load(text) == yaml.safe_load(GOLDEN.read_text()), (
        "The compiled pipeline changed. If that is meant: UPDATE_GOLDEN=1 pytest "
        "tests/pipelines/cluster/test_compile.py"
    )


def test_config_becomes_the_defaults_of_the_parameters(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    compile_pipeline(load_config(overrides=["training.epochs=3", "seed=5"]), path)
    parameters = yaml.safe_load(path.read_text())["root"]["inputDefinitions"]["parameters"]
    assert parameters["training"]["defaultValue"]["epochs"] == 3
    assert parameters["seed"]["defaultValue"] == 5


def test_compile_orders_and_connects_steps(spec: dict[str, Any]) -> None:
    from qatline.pipelines.qat_pipeline import qat_pipeline

    assert step_names(qat_pipeline) == list(STEP_ARTIFACTS)
    for step, artifact in STEP_ARTIFACTS.items():
        outputs = spec["components"][f"comp-{step.replace('_', '-')}-component"][
            "outputDefinitions"
        ]["artifacts"]
        assert artifact in outputs
        assert "metrics" in outputs


def test_an_input_that_nothing_gives_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from qat_lib.errors import StepError
    from qatline.components import step_table as steps
    from qatline.pipelines import qat_pipeline

    late = [step for step in steps.STEPS if step.name != "prepare_data"]
    monkeypatch.setattr(qat_pipeline, "STEPS", late)
    with pytest.raises(
        StepError,
        match=r"'train_baseline' has an input 'dataset' .*\(it is the first\).*\(seed, data,",
    ):
        qat_pipeline.build_pipeline()


def test_steps_install_nothing_and_use_their_image(spec: dict[str, Any]) -> None:
    for name, executor in spec["deploymentSpec"]["executors"].items():
        container = executor["container"]
        assert "pip install" not in " ".join(container["command"])
        assert "python" in container["image"]
        engine = name in (
            "exec-build-engine-component",
            "exec-evaluate-component",
            "exec-promote-component",
        )
        assert ("engine" in container["image"]) is engine


def test_tracking_server_reaches_cluster_steps() -> None:
    text = pipeline_ir(
        load_config(overrides=["tracking.uri=http://mlflow:5000", "tracking.required=false"])
    )
    spec, _ = yaml.safe_load_all(text)
    for executor in spec["deploymentSpec"]["executors"].values():
        environment = {item["name"]: item["value"] for item in executor["container"]["env"]}
        assert environment == {
            "MLFLOW_TRACKING_URI": "http://mlflow:5000",
            "MLFLOW_EXPERIMENT_NAME": "qatline",
            "QATLINE_TRACKING": "optional",
            "QATLINE_PIPELINE_NAME": "resnet_digits on digits",
        }


def test_store_that_no_pod_reaches_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tracking\.uri: sqlite:///.*: pods write to a tracking"):
        pipeline_ir(load_config(overrides=["tracking.uri=sqlite:///x.db"]))
    assert "MLFLOW" not in pipeline_ir(load_config())


def test_an_output_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Could not write"):
        compile_pipeline(load_config(), tmp_path / "missing" / "pipeline.yaml")


def test_compile_is_deterministic_across_processes() -> None:
    code = (
        "from qatline.pipelines.cluster.compile import *; from qatline.pipelines.config.run_config import load_config; "
        "print(pipeline_ir(load_config()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == pipeline_ir(load_config()) + "\n"


def test_compile_without_caching_disables_step_reuse() -> None:
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
        (
            ("components", "comp-evaluate-component", "executorLabel"),
            "nope",
            "refers to the executor nope",
        ),
        (
            ("root", "dag", "tasks", "promote-component", "componentRef", "name"),
            "nope",
            "refers to the component nope",
        ),
        (
            ("root", "dag", "tasks", "promote-component", "dependentTasks"),
            ["nope"],
            "refers to the task nope",
        ),
        (
            ("root", "dag", "tasks", "promote-component", "dependentTasks"),
            [],
            "without depending on them",
        ),
    ],
)
def test_a_broken_pipeline_is_found(
    spec: dict[str, Any], path: tuple[str, ...], value: Any, message: str
) -> None:
    broken = copy.deepcopy(spec)
    node = broken
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    with pytest.raises(ExportError, match=message):
        check_ir([broken])


def test_unknown_kubernetes_field_is_found(spec: dict[str, Any]) -> None:
    executors = {"exec-evaluate-component": {"nodeSelectorr": {"labels": {"gpu": "true"}}}}
    platform = {"platforms": {"kubernetes": {"deploymentSpec": {"executors": executors}}}}
    with pytest.raises(ExportError, match="kubernetes config of exec-evaluate-component"):
        check_ir([spec, platform])


def test_unknown_field_of_the_platform_is_found(spec: dict[str, Any]) -> None:
    platform = {"platforms": {"kubernetes": {"pipelineConfig": {"deadline": 5}}}}
    with pytest.raises(ExportError, match="platform kubernetes"):
        check_ir([spec, platform])


def test_the_whole_graph_has_no_problem(spec: dict[str, Any]) -> None:
    assert list(graph_problems(spec)) == []


def compiled(config: Path) -> str:
    text = pipeline_ir(load_config(config), caching=config.stem not in UNCACHED)
    return re.sub(r"^sdkVersion: .*\n", "", text, flags=re.MULTILINE)


def committed(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(GOLDEN.with_name(f"{name}.yaml").read_text()))


def test_four_configs_are_covered() -> None:
    assert [path.stem for path in CONFIGS] == ["gpu-s3-secrets", "minimal", "retraining", "workers"]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_the_compiled_config_is_the_committed_one(config: Path) -> None:
    text, golden = compiled(config), GOLDEN.with_name(config.name)
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert list(yaml.safe_load_all(text)) == committed(config.stem), (
        "The compiled pipeline changed. If that is meant: UPDATE_GOLDEN=1 pytest "
        "tests/pipelines/cluster/test_compile.py"
    )


@pytest.mark.parametrize("name", [path.stem for path in CONFIGS])
def test_committed_pipelines_are_valid(name: str) -> None:
    spec, *platform = committed(name)
    check_ir([spec, *platform])


def test_secrets_are_names_alone() -> None:
    text = GOLDEN.with_name("gpu-s3-secrets.yaml").read_text()
    spec, platform = committed("gpu-s3-secrets")
    pods = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    for name, executor in spec["deploymentSpec"]["executors"].items():
        plain = {item["name"] for item in executor["container"]["env"]}
        secret = set()
        for source in pods[name]["secretAsEnv"]:
            secret.update(item["envVar"] for item in source["keyToEnv"])
        assert "MLFLOW_TRACKING_PASSWORD" in secret
        assert not plain & secret
    assert "qatline-runner" not in text


def test_scheduled_steps_use_no_cache() -> None:
    spec, _ = committed("retraining")
    tasks = dict(spec["components"]["comp-exit-handler-1"]["dag"]["tasks"])
    assert tasks.pop("condition-2")
    tasks |= spec["components"]["comp-condition-2"]["dag"]["tasks"]
    assert len(tasks) == 9
    assert {name for name, task in tasks.items() if task["cachingOptions"]} == set()
    data = spec["root"]["inputDefinitions"]["parameters"]["data"]["defaultValue"]
    assert data["storage"] == "shards"
