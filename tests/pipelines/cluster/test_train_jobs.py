"""Several workers in the compiled pipeline: launchers, their TrainJobs, what is refused."""

from dataclasses import asdict
from typing import Any

import pytest
import yaml
from fake_kubernetes import FORMS, check_schema

from qat_lib.errors import ConfigError
from qatline.components.trainjob import tf_config
from qatline.components.trainjob.objects import COMMAND, NODE, train_job
from qatline.components.trainjob.pods import INDEX_LABEL
from qatline.components.trainjob.task import JobTemplate, WorkerTask, read_variable
from qatline.pipelines.cluster.compile import pipeline_ir
from qatline.pipelines.cluster.train_jobs import (
    check_workers,
    job_template,
    launcher_pod,
    runtime_manifests,
)
from qatline.pipelines.config.run_config import RunConfig, load_config

WORKERS = (
    "training.workers=2",
    "cluster.secret_env={AWS_ACCESS_KEY_ID: s/a, AWS_SECRET_ACCESS_KEY: s/b}",
)
STEPS = ("train_baseline", "finetune_qat")


def config(*overrides: str) -> RunConfig:
    return load_config(overrides=[*WORKERS, *overrides])


def container(spec: dict[str, Any], step: str) -> dict[str, Any]:
    name = f"exec-{step.replace('_', '-')}-component"
    return dict(spec["deploymentSpec"]["executors"][name]["container"])


def variables(spec: dict[str, Any], step: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(spec, step).get("env", ())}


def test_launchers_hold_their_train_job() -> None:
    compiled = config("cluster.images.train='r.example/t:1'")
    spec, *_ = yaml.safe_load_all(pipeline_ir(compiled))
    for step in STEPS:
        held = read_variable("QATLINE_TRAIN_JOB", JobTemplate, variables(spec, step))
        assert held == job_template(compiled, step)
        assert (held.nodes, held.image) == (2, "r.example/t:1")
        assert container(spec, step)["image"] == "r.example/t:1"
    assert "QATLINE_TRAIN_JOB" not in variables(spec, "quantize_model")


def test_launchers_keep_the_interface_of_their_step() -> None:
    alone, *_ = yaml.safe_load_all(pipeline_ir(load_config()))
    several, *_ = yaml.safe_load_all(pipeline_ir(config()))
    steps = several["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    for name, task in alone["root"]["dag"]["tasks"].items():
        assert steps[name].get("dependentTasks") == task.get("dependentTasks")
    for name, component in alone["components"].items():
        assert several["components"][name] == component


def test_launchers_know_the_pipeline_run_without_a_tracking_server() -> None:
    _, platform = yaml.safe_load_all(pipeline_ir(config()))
    pods = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    (source,) = pods["exec-train-baseline-component"]["fieldPathAsEnv"]
    assert source == {
        "name": "QATLINE_PIPELINE_RUN_ID",
        "fieldPath": "metadata.labels['pipeline/runid']",
    }


def test_accelerators_are_the_workers_and_not_the_launchers() -> None:
    compiled = config(
        "cluster={cpu: 2, memory: 4Gi, node_selector: {zone: a}}",
        "cluster.steps.train_baseline={accelerator_count: 2, memory_limit: 8Gi, timeout: 2h}",
        "cluster.steps.train_baseline.node_selector={gpu: l4}",
    )
    pod = launcher_pod(compiled, "train_baseline")
    assert (pod.cpu, pod.memory, pod.accelerator) == ("100m", "512Mi", None)
    assert (pod.cpu_limit, pod.memory_limit, pod.timeout) == (None, "2Gi", 7200)
    assert pod.node_selector == {"zone": "a"}
    template = job_template(compiled, "train_baseline")
    assert template.resources == {
        "requests": {"cpu": "2", "memory": "4Gi"},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": "2"},
    }
    assert template.pod == {"nodeSelector": {"gpu": "l4"}}


def test_workers_get_environment_secrets_and_tracking() -> None:
    template = job_template(
        config("cluster.env={A: b}", "tracking={uri: 'http://mlflow:5000', required: false}"),
        "finetune_qat",
    )
    assert template.env == [
        {"name": "MLFLOW_TRACKING_URI", "value": "http://mlflow:5000"},
        {"name": "MLFLOW_EXPERIMENT_NAME", "value": "qatline"},
        {"name": "QATLINE_TRACKING", "value": "optional"},
        {"name": "QATLINE_PIPELINE_NAME", "value": "resnet_digits on digits"},
        {"name": "A", "value": "b"},
        {"name": "AWS_ACCESS_KEY_ID", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a"}}},
        {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "b"}}},
    ]


@pytest.mark.parametrize("form", FORMS)
def test_train_job_of_a_full_config_is_what_trainer_takes(form: str) -> None:
    compiled = config(
        "cluster={image_pull_secrets: [registry], accelerator_count: 1, cpu: 4, memory_limit: 8Gi}",
        "cluster.node_selector={gpu: l4}",
        "cluster.tolerations=[{key: gpu, effect: NoSchedule}, {key: a, value: b}]",
        "cluster.volumes=[{claim: c, path: /c, sub_path: x}, {claim: d, path: /d}]",
        "cluster.train_job={service_account: worker, labels: {kueue.x-k8s.io/queue-name: q}}",
    )
    template = job_template(compiled, "train_baseline")
    task = WorkerTask(step="train_baseline", settings={}, seed=0, inputs={}, output="s3://b/o")
    job = train_job(template, task, run="1f2e", environment={}, form=form)
    check_schema(job, "TrainJob", tuple(each for each in FORMS if each != form))
    assert template.pod["tolerations"] == [
        {"key": "gpu", "effect": "NoSchedule", "operator": "Exists"},
        {"key": "a", "value": "b", "operator": "Equal"},
    ]
    assert template.mounts[0] == {"name": "volume-0", "mountPath": "/c", "subPath": "x"}
    assert template.pod["serviceAccountName"] == "worker"
    assert template.pod["imagePullSecrets"] == [{"name": "registry"}]


def test_pipeline_root_is_the_configs() -> None:
    spec, *_ = yaml.safe_load_all(pipeline_ir(config("cluster.pipeline_root='s3://b/pipelines/'")))
    assert spec["defaultPipelineRoot"] == "s3://b/pipelines"


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["model={framework: torch, name: resnet20_cifar10}"], "framework=torch"),
        (["cluster.pipeline_root='gs://bucket/x'"], "pipeline_root=gs://bucket/x"),
        (["cluster.env={TF_CONFIG: '{}'}"], "TF_CONFIG in cluster.env: each worker derives"),
        (
            ["cluster.env={QATLINE_CHECKPOINTS: /c}", "cluster.volumes=[{claim: c, path: /other}]"],
            "QATLINE_CHECKPOINTS=/c of train_baseline, which ends with the pod: mount a volume",
        ),
    ],
)
def test_what_several_workers_can_not_do_is_refused(overrides: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_workers(config(*overrides))
    assert problem in str(caught.value)


def test_workers_need_the_object_stores_credentials() -> None:
    several = "training.workers=2"
    for overrides in ([], ["cluster.secret_env={AWS_ACCESS_KEY_ID: s/a}"]):
        with pytest.raises(ConfigError, match=r"no AWS_.*for the object store: set cluster\.secre"):
            pipeline_ir(load_config(overrides=[several, *overrides]))
    check_workers(config())
    check_workers(load_config(overrides=[several, "cluster.train_job.service_account=worker"]))
    check_workers(load_config())


def test_checkpoints_in_a_volume_are_taken() -> None:
    check_workers(
        config(
            "cluster.env={QATLINE_CHECKPOINTS: /c/here}", "cluster.volumes=[{claim: c, path: /c}]"
        )
    )


def test_secrets_are_names_in_the_template() -> None:
    text = str(asdict(job_template(config(), "train_baseline")))
    assert "secretKeyRef" in text
    assert "'value'" not in text


def test_exit_handler_deletes_what_launchers_left() -> None:
    spec, platform = yaml.safe_load_all(pipeline_ir(config()))
    container = spec["deploymentSpec"]["executors"]["exec-close-run-component"]["container"]
    assert container["env"] == [{"name": "QATLINE_TRAIN_JOBS", "value": "delete"}]
    pods = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    (run,) = pods["exec-close-run-component"]["fieldPathAsEnv"]
    assert run["name"] == "QATLINE_PIPELINE_RUN_ID"


def manifests(*overrides: str, **options: str) -> dict[str, dict[str, Any]]:
    text = runtime_manifests(load_config(overrides=overrides).cluster, **options)
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def node_container(runtime: dict[str, Any]) -> dict[str, Any]:
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == NODE
    (found,) = job["template"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_runtime_is_what_trainer_takes() -> None:
    runtime = manifests()["ClusterTrainingRuntime"]
    check_schema(runtime, "TrainingRuntime")
    assert runtime["metadata"]["labels"] == {"trainer.kubeflow.org/framework": "tensorflow"}
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    # Without this label Trainer changes no image, command or number of nodes.
    assert job["template"]["metadata"]["labels"] == {
        "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"
    }


def test_runtime_gives_pods_what_tf_config_is_derived_from() -> None:
    (variables,) = [node_container(manifests()["ClusterTrainingRuntime"])["env"]]
    sources = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in variables}
    label = "metadata.labels['jobset.sigs.k8s.io/{}']".format
    assert sources == {
        tf_config.JOBSET_VARIABLE: label("jobset-name"),
        tf_config.REPLICATED_JOB_VARIABLE: label("replicatedjob-name"),
        tf_config.JOB_INDEX_VARIABLE: label("job-index"),
    }
    assert INDEX_LABEL == "batch.kubernetes.io/job-completion-index"


def test_runtime_runs_a_worker_on_its_port() -> None:
    found = node_container(manifests()["ClusterTrainingRuntime"])
    assert found["name"] == NODE
    assert found["command"] == list(COMMAND)
    assert found["ports"] == [{"name": "tensorflow", "containerPort": tf_config.PORT}]


def test_runtime_lets_a_worker_that_dies_end_the_others() -> None:
    spec = manifests()["ClusterTrainingRuntime"]["spec"]["template"]["spec"]
    (job,) = spec["replicatedJobs"]
    assert spec["failurePolicy"] == {"maxRestarts": 0}
    assert job["template"]["spec"]["backoffLimit"] == 0
    assert job["template"]["spec"]["completionMode"] == "Indexed"
    assert job["template"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_manifests_follow_the_config() -> None:
    found = manifests(
        "cluster.train_job={runtime: mine, runtime_kind: TrainingRuntime}",
        "cluster={service_account: runner, images: {train: 'r.example/t:1'}}",
        namespace="team",
    )
    runtime = found["TrainingRuntime"]
    check_schema(runtime, "TrainingRuntime")
    assert runtime["metadata"]["name"] == "mine"
    assert runtime["metadata"]["namespace"] == "team"
    assert node_container(runtime)["image"] == "r.example/t:1"
    assert found["RoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": "runner", "namespace": "team"}
    ]


@pytest.mark.parametrize(("options", "account"), [({}, "pipeline-runner"), ({"account": "a"}, "a")])
def test_role_is_bound_to_the_account_of_the_runs(options: dict[str, str], account: str) -> None:
    found = manifests(**options)
    assert found["RoleBinding"]["subjects"][0]["name"] == account
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    assert found["Role"]["metadata"]["namespace"] == "kubeflow"


def test_role_allows_nothing_beyond_the_launchers_calls() -> None:
    rules: dict[str, list[str]] = {}
    for rule in manifests()["Role"]["rules"]:
        for resource in rule["resources"]:
            rules[resource] = sorted(rule["verbs"])
    assert rules == {
        "trainjobs": ["create", "delete", "get", "list"],
        "pods": ["list"],
        "pods/log": ["get"],
    }
