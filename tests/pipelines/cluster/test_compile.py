"""The compiled pipeline: equal to the golden file, schema-valid, connected."""

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.export.choice import choose_export
from components.settings import EngineSettings, ExportSettings
from pipelines.cluster.compile import compile_pipeline, pipeline_ir
from pipelines.cluster.ir_check import check_ir, graph_problems
from pipelines.config.cluster_settings import ClusterSteps
from pipelines.config.run_config import load_config
from pipelines.run.launch import step_names
from pipelines.steps import STEP_ARTIFACTS
from qat_lib.errors import ConfigError, ExportError

GOLDEN = Path(__file__).parents[1] / "golden" / "qatline.yaml"
GPU_FOR_ENGINES = (
    "cluster.steps={build_engine: {accelerator_count: 1}, evaluate: {accelerator_count: 1}}"
)


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    (document,) = yaml.safe_load_all(pipeline_ir(load_config()))
    return document  # type: ignore[no-any-return]


def test_the_compiled_pipeline_is_the_committed_one(tmp_path: Path) -> None:
    from kfp import compiler

    from pipelines.qat_pipeline import qat_pipeline

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
    from pipelines.qat_pipeline import qat_pipeline

    assert step_names(qat_pipeline) == list(STEP_ARTIFACTS)
    for step, artifact in STEP_ARTIFACTS.items():
        outputs = spec["components"][f"comp-{step.replace('_', '-')}-component"][
            "outputDefinitions"
        ]["artifacts"]
        assert artifact in outputs
        assert "metrics" in outputs


def test_an_input_that_nothing_gives_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from components import steps
    from pipelines import qat_pipeline
    from qat_lib.errors import StepError

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


def test_a_local_store_does_not_reach_a_cluster() -> None:
    assert "MLFLOW" not in pipeline_ir(load_config(overrides=["tracking.uri=sqlite:///x.db"]))


def test_an_output_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Could not write"):
        compile_pipeline(load_config(), tmp_path / "missing" / "pipeline.yaml")


def test_compile_is_deterministic_across_processes() -> None:
    code = (
        "from pipelines.cluster.compile import *; from pipelines.config.run_config import load_config; "
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


def test_without_a_cluster_section_nothing_is_asked_for(spec: dict[str, Any]) -> None:
    assert all(
        "resources" not in executor["container"]
        for executor in spec["deploymentSpec"]["executors"].values()
    )


def test_every_step_may_ask_for_its_own() -> None:
    assert list(ClusterSteps.model_fields) == list(STEP_ARTIFACTS)


def test_compile_writes_requests_in_backend_field_names() -> None:
    resources = requested(
        "cluster={cpu: 2, cpu_limit: 4, memory: 4Gi, memory_limit: 8Gi}",
        "cluster.steps.train_baseline={cpu: 500m, memory: 16G, memory_limit: 16G}",
    )
    # The names without "resource" are for older servers: CPUs, and memory in 10^9 bytes.
    common = {
        "resourceCpuRequest": "2",
        "resourceCpuLimit": "4",
        "resourceMemoryRequest": "4Gi",
        "resourceMemoryLimit": "8Gi",
        "cpuRequest": 2.0,
        "cpuLimit": 4.0,
        "memoryRequest": 4.294967296,
        "memoryLimit": 8.589934592,
    }
    own = {
        "resourceCpuRequest": "500m",
        "resourceMemoryRequest": "16G",
        "resourceMemoryLimit": "16G",
    }
    own_floats = {"cpuRequest": 0.5, "memoryRequest": 16.0, "memoryLimit": 16.0}
    assert resources == dict.fromkeys(STEP_ARTIFACTS, common) | {
        "train_baseline": common | own | own_floats
    }


def test_accelerator_reaches_requesting_steps() -> None:
    resources = requested(GPU_FOR_ENGINES, "cluster.steps.evaluate.accelerator_count=2")
    assert {
        step: asked["accelerator"]["resourceCount"] for step, asked in resources.items() if asked
    } == {
        "build_engine": "1",
        "evaluate": "2",
    }
    assert resources["build_engine"]["accelerator"]["resourceType"] == "nvidia.com/gpu"
    slices = requested("cluster={accelerator_count: 1, accelerator_type: nvidia.com/mig-1g.10gb}")
    assert {asked["accelerator"]["resourceType"] for asked in slices.values()} == {
        "nvidia.com/mig-1g.10gb"
    }
    spared = requested("cluster.accelerator_count=1", "cluster.steps.promote.accelerator_count=0")
    assert [step for step, asked in spared.items() if not asked] == ["promote"]


def test_nodes_are_chosen_by_labels_and_taints() -> None:
    _, platform = yaml.safe_load_all(
        pipeline_ir(
            load_config(
                overrides=[
                    "cluster.steps.evaluate.node_selector={gpu.product: L4}",
                    "cluster.steps.evaluate.tolerations=[{key: gpu}, {key: gpu, value: l4, effect: NoSchedule}]",
                ]
            )
        )
    )
    assert platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"] == {
        "exec-evaluate-component": {
            "nodeSelector": {"labels": {"gpu.product": "L4"}},
            "tolerations": [
                {"key": "gpu", "operator": "Exists"},
                {"key": "gpu", "operator": "Equal", "value": "l4", "effect": "NoSchedule"},
            ],
        }
    }


def test_compile_accelerator_selects_tensorrt_backend() -> None:
    config = load_config(overrides=[GPU_FOR_ENGINES])
    pinned, free = parameters(GPU_FOR_ENGINES), parameters()
    assert (pinned["engine"]["backend"], free["engine"]["backend"]) == ("tensorrt", "auto")
    assert config.engine.backend == "auto"
    assert pinned.keys() == free.keys()
    # What the pod of export_onnx makes of it, on a machine without a GPU.
    choice = choose_export(ExportSettings(**pinned["export"]), EngineSettings(**pinned["engine"]))
    assert (choice.target, choice.fp16) == ("tensorrt", True)


@pytest.mark.parametrize("backend", ["tensorrt", "openvino", "onnxruntime"])
def test_a_backend_that_is_named_stays(backend: str) -> None:
    assert parameters(GPU_FOR_ENGINES, f"engine.backend={backend}")["engine"]["backend"] == backend


def test_accelerators_of_other_steps_leave_the_backend_alone() -> None:
    assert (
        parameters("cluster.steps.train_baseline.accelerator_count=1")["engine"]["backend"]
        == "auto"
    )


@pytest.mark.parametrize("backend", ["auto", "tensorrt"])
@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            "{build_engine: {accelerator_count: 1}}",
            "received nvidia.com/gpu and none. Set accelerator_count for both",
        ),
        ("{evaluate: {accelerator_count: 1}}", "received none and nvidia.com/gpu."),
        (
            "{build_engine: {accelerator_count: 1}, evaluate: {accelerator_type: a.b/c, accelerator_count: 1}}",
            "received nvidia.com/gpu and a.b/c.",
        ),
    ],
)
def test_engines_that_could_not_be_evaluated_are_refused(
    backend: str, steps: str, message: str
) -> None:
    overrides = [f"cluster.steps={steps}", f"engine.backend={backend}"]
    with pytest.raises(
        ConfigError, match="Expected the same accelerator for build_engine and evaluate"
    ) as caught:
        pipeline_ir(load_config(overrides=overrides))
    assert message in str(caught.value)
    pipeline_ir(load_config(overrides=[*overrides, "engine.backend=openvino"]))


def test_compile_refuses_unsigned_with_accelerator() -> None:
    for target in ("auto", "onnxruntime"):
        with pytest.raises(
            ConfigError,
            match=r"makes TensorRT of engine\.backend=auto\. quantization\.unsigned=always",
        ):
            parameters(GPU_FOR_ENGINES, "quantization.unsigned=always", f"export.target={target}")
    assert parameters(GPU_FOR_ENGINES)["quantization"]["unsigned"] == "auto"


def test_compile_refuses_openvino_with_accelerator() -> None:
    with pytest.raises(
        ConfigError,
        match=r"expected export.target auto, tensorrt or onnxruntime, received openvino",
    ):
        parameters(GPU_FOR_ENGINES, "export.target=openvino")
    assert (
        parameters(GPU_FOR_ENGINES, "export.target=onnxruntime")["engine"]["backend"] == "tensorrt"
    )


def requested(*overrides: str) -> dict[str, dict[str, Any]]:
    """The resources of each step's container."""
    compiled = yaml.safe_load(pipeline_ir(load_config(overrides=overrides)))
    return {
        step: compiled["deploymentSpec"]["executors"][f"exec-{step.replace('_', '-')}-component"][
            "container"
        ].get("resources", {})
        for step in STEP_ARTIFACTS
    }


def parameters(*overrides: str) -> dict[str, Any]:
    """The defaults of the compiled pipeline's parameters."""
    compiled = yaml.safe_load(pipeline_ir(load_config(overrides=overrides)))
    found = compiled["root"]["inputDefinitions"]["parameters"]
    return {name: parameter["defaultValue"] for name, parameter in found.items()}


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


def test_the_whole_graph_has_no_problem(spec: dict[str, Any]) -> None:
    assert list(graph_problems(spec)) == []
