"""The cluster section in the compiled pipeline: pods, attempts, images."""

from typing import Any

import pytest
import yaml

from qat_lib.errors import ConfigError
from qatline.components.export.choice import choose_export
from qatline.components.settings import EngineSettings, ExportSettings
from qatline.components.step_table import STEPS
from qatline.pipelines.cluster.compile import pipeline_ir
from qatline.pipelines.cluster.tasks import launched_steps, workers_of
from qatline.pipelines.config.cluster_settings import ClusterSteps
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.steps import IMAGE_OF, STEP_ARTIFACTS

GPU_FOR_ENGINES = (
    "cluster.steps={build_engine: {accelerator_count: 1}, evaluate: {accelerator_count: 1}}"
)


def compiled(*overrides: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(pipeline_ir(load_config(overrides=overrides))))


def pods(platform: dict[str, Any]) -> dict[str, Any]:
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    found: dict[str, Any] = executors
    return found


def executor(step: str) -> str:
    return f"exec-{step.replace('_', '-')}-component"


def test_environment_reaches_the_containers() -> None:
    spec, platform = compiled(
        "cluster.env={AWS_ENDPOINT_URL_S3: 'https://s3.example'}",
        "cluster.secret_env={AWS_SECRET_ACCESS_KEY: store/key}",
    )
    for step in STEP_ARTIFACTS:
        container = spec["deploymentSpec"]["executors"][executor(step)]["container"]
        assert container["env"] == [{"name": "AWS_ENDPOINT_URL_S3", "value": "https://s3.example"}]
        (secret,) = pods(platform)[executor(step)]["secretAsEnv"]
        assert secret["keyToEnv"] == [{"envVar": "AWS_SECRET_ACCESS_KEY", "secretKey": "key"}]
        assert secret["secretName"] == "store"


def test_volumes_and_pull_settings_reach_the_pods() -> None:
    _, platform = compiled(
        "cluster={image_pull_secrets: [registry], image_pull_policy: Always}",
        "cluster.steps.prepare_data.volumes=[{claim: data, path: /data, sub_path: images}]",
    )
    pod = pods(platform)[executor("prepare_data")]
    (mount,) = pod["pvcMount"]
    assert (mount["constant"], mount["mountPath"], mount["subPath"]) == ("data", "/data", "images")
    others = pods(platform)[executor("evaluate")]
    assert "pvcMount" not in others
    assert [secret["secretName"] for secret in others["imagePullSecret"]] == ["registry"]
    assert others["imagePullPolicy"] == "Always"


def test_attempts_are_limited_in_time_and_number() -> None:
    spec, platform = compiled(
        "cluster={timeout: 90m, retry: {limit: 2, backoff: 30s, factor: 3}}",
        "cluster.steps.promote.retry={limit: 0}",
    )
    tasks = spec["root"]["dag"]["tasks"]
    assert tasks["evaluate-component"]["retryPolicy"] == {
        "maxRetryCount": 2,
        "backoffDuration": "30s",
        "backoffFactor": 3.0,
        # kfp's own default of one hour would leave a long training without a second attempt.
        "backoffMaxDuration": "604800s",
    }
    assert "retryPolicy" not in tasks["promote-component"]
    assert pods(platform)[executor("evaluate")]["activeDeadlineSeconds"] == "5400"


def test_run_timeout_limits_the_workflow() -> None:
    _, platform = compiled("cluster.run_timeout=12h")
    assert platform["platforms"]["kubernetes"]["pipelineConfig"] == {"activeDeadlineSeconds": 43200}


def test_images_of_the_config_are_the_steps_images() -> None:
    (spec,) = compiled("cluster.images={train: 'r.example/t:1', engine: 'r.example/e:1'}")
    for step, image in IMAGE_OF.items():
        container = spec["deploymentSpec"]["executors"][executor(step)]["container"]
        assert container["image"] == {"train": "r.example/t:1", "engine": "r.example/e:1"}[image]


def test_service_account_is_no_part_of_the_pipeline() -> None:
    assert compiled("cluster.service_account=runner") == compiled()


def test_without_a_cluster_section_nothing_is_asked_for() -> None:
    (spec,) = compiled()
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
        match=r"makes TensorRT of engine\.backend=auto\. export\.target=openvino stores unsigned",
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


def test_training_steps_have_the_configs_workers() -> None:
    config = load_config(overrides=["training.workers=3"])
    counts = {step.name: workers_of(config, step.name) for step in STEPS}
    assert {name for name, count in counts.items() if count == 3} == {
        "train_baseline",
        "finetune_qat",
    }
    assert set(counts.values()) == {1, 3}


def test_steps_with_several_workers_are_launched() -> None:
    assert launched_steps(load_config()) == frozenset()
    several = load_config(overrides=["training.workers=2"])
    assert launched_steps(several) == {"train_baseline", "finetune_qat"}
    assert launched_steps(several) == {step.name for step in STEPS if step.distributed}
