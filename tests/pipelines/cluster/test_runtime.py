"""The manifests that a cluster needs, against the schemas and what the code relies on."""

from typing import Any

import pytest
import yaml
from fake_kubernetes import check_schema

from qatline.components.trainjob import tf_config
from qatline.components.trainjob.objects import COMMAND, NODE
from qatline.components.trainjob.pods import INDEX_LABEL
from qatline.pipelines.cluster.runtime import runtime_manifests
from qatline.pipelines.config.run_config import load_config


def manifests(*overrides: str, **options: str) -> dict[str, dict[str, Any]]:
    text = runtime_manifests(load_config(overrides=overrides).cluster, **options)
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def container(runtime: dict[str, Any]) -> dict[str, Any]:
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
    (variables,) = [container(manifests()["ClusterTrainingRuntime"])["env"]]
    sources = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in variables}
    label = "metadata.labels['jobset.sigs.k8s.io/{}']".format
    assert sources == {
        tf_config.JOBSET_VARIABLE: label("jobset-name"),
        tf_config.REPLICATED_JOB_VARIABLE: label("replicatedjob-name"),
        tf_config.JOB_INDEX_VARIABLE: label("job-index"),
    }
    assert INDEX_LABEL == "batch.kubernetes.io/job-completion-index"


def test_runtime_runs_a_worker_on_its_port() -> None:
    found = container(manifests()["ClusterTrainingRuntime"])
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
    assert container(runtime)["image"] == "r.example/t:1"
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
