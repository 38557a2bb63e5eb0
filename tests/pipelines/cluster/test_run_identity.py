"""What makes the pods of a run one run, and what happens at its end."""

from datetime import datetime
from typing import Any

import pytest
import yaml

from qat_lib.errors import ConfigError
from qatline.pipelines.cluster.compile import pipeline_ir
from qatline.pipelines.cluster.ir_check import check_ir
from qatline.pipelines.cluster.run_identity import run_name
from qatline.pipelines.config.run_config import SECTIONS, load_config

TRACKED = "tracking.uri=http://mlflow:5000"
EXIT = "exec-close-run-component"


def compiled(*overrides: str) -> tuple[dict[str, Any], dict[str, Any]]:
    documents = list(yaml.safe_load_all(pipeline_ir(load_config(overrides=overrides))))
    check_ir(documents)
    spec, platform = documents[0], documents[1] if len(documents) > 1 else {}
    kubernetes = platform.get("platforms", {}).get("kubernetes", {})
    return spec, kubernetes.get("deploymentSpec", {}).get("executors", {})


def environment(spec: dict[str, Any], executor: str) -> dict[str, str]:
    listed = spec["deploymentSpec"]["executors"][executor]["container"].get("env", [])
    return {item["name"]: item["value"] for item in listed}


def test_every_pod_knows_the_run_it_belongs_to() -> None:
    spec, pods = compiled(TRACKED)
    assert set(pods) == set(spec["deploymentSpec"]["executors"])
    for name, pod in pods.items():
        assert pod["fieldPathAsEnv"] == [
            {
                "name": "QATLINE_PIPELINE_RUN_ID",
                "fieldPath": "metadata.labels['pipeline/runid']",
            }
        ]
        assert environment(spec, name)["QATLINE_PIPELINE_NAME"] == "resnet_digits on digits"


def test_the_run_is_closed_whatever_happened() -> None:
    spec, _ = compiled(TRACKED)
    tasks = spec["root"]["dag"]["tasks"]
    assert set(tasks) == {"exit-handler-1", "close-run-component"}
    ending = tasks["close-run-component"]
    assert ending["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    assert ending["inputs"]["parameters"]["status"] == {
        "taskFinalStatus": {"producerTask": "exit-handler-1"}
    }
    assert ending["cachingOptions"] == {}
    steps = spec["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert len(steps) == 8


def test_without_server_and_webhook_nothing_ends_a_run() -> None:
    spec, pods = compiled()
    assert EXIT not in spec["deploymentSpec"]["executors"]
    assert pods == {}


def test_webhook_reaches_the_last_pod_alone() -> None:
    spec, _ = compiled("cluster.webhook=https://hooks.example/run")
    for name in spec["deploymentSpec"]["executors"]:
        expected = {"QATLINE_WEBHOOK": "https://hooks.example/run"} if name == EXIT else {}
        assert environment(spec, name) == expected


def test_secret_webhook_is_enough_for_an_end() -> None:
    spec, pods = compiled("cluster.secret_env={QATLINE_WEBHOOK: hooks/url}")
    assert EXIT in spec["deploymentSpec"]["executors"]
    (secret,) = pods[EXIT]["secretAsEnv"]
    assert secret["keyToEnv"] == [{"envVar": "QATLINE_WEBHOOK", "secretKey": "url"}]


def test_last_pod_asks_for_no_resources_but_runs_where_others_do() -> None:
    spec, pods = compiled(
        TRACKED,
        "cluster={memory: 8Gi, accelerator_count: 1, volumes: [{claim: a, path: /a}]}",
        "cluster={node_selector: {pool: a}, image_pull_secrets: [r], images: {engine: 'r/e:1'}}",
    )
    container = spec["deploymentSpec"]["executors"][EXIT]["container"]
    assert "resources" not in container
    assert container["image"] == "r/e:1"
    assert pods[EXIT]["nodeSelector"] == {"labels": {"pool": "a"}}
    assert "pvcMount" not in pods[EXIT]
    assert pods[EXIT]["imagePullSecret"][0]["secretName"] == "r"


ONLY_NEW = ("retrain.only_new=true", "registry.name=flowers")


def test_steps_run_only_if_anything_is_new() -> None:
    spec, pods = compiled(
        TRACKED,
        *ONLY_NEW,
        "cluster.images.train='r/t:1'",
        "cluster.steps.prepare_data={volumes: [{claim: a, path: /a}], memory: 4Gi}",
        "cluster.steps.train_baseline.volumes=[{claim: b, path: /b}]",
    )
    group = spec["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert set(group) == {"check-new-component", "condition-2"}
    condition = group["condition-2"]["triggerPolicy"]["condition"]
    assert condition.endswith(
        "parameter_values['pipelinechannel--check-new-component-Output'] == true"
    )
    assert len(spec["components"]["comp-condition-2"]["dag"]["tasks"]) == 8
    name = "exec-check-new-component"
    container = spec["deploymentSpec"]["executors"][name]["container"]
    assert container["image"] == "r/t:1"
    assert container["resources"]["resourceMemoryRequest"] == "4Gi"
    assert sorted(mount["mountPath"] for mount in pods[name]["pvcMount"]) == ["/a", "/b"]
    assert group["check-new-component"]["cachingOptions"] == {}
    given = spec["components"]["comp-check-new-component"]["inputDefinitions"]["parameters"]
    assert set(given) == {"seed", *SECTIONS}


def test_without_a_server_only_new_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"retrain\.only_new: expected the address of a tracking"):
        compiled(*ONLY_NEW)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cluster.webhook=hooks.example", "cluster.webhook: expected an address such as"),
        (
            "cluster.webhook='https://me:hunter2@hooks.example/'",
            "cluster.webhook: expected an address without credentials",
        ),
        (
            "cluster.webhook=https://hooks.slack.com/services/T0/B0/hunter2",
            "cluster.webhook: expected no secret.*QATLINE_WEBHOOK: secret-name/key",
        ),
        ("cluster.env={QATLINE_PIPELINE_RUN_ID: a}", "expected Kubeflow to set QATLINE_PIPELINE"),
    ],
)
def test_wrong_identities_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(overrides=[override])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "resnet_digits on digits"),
        (["model.name=keras.applications:MobileNetV2"], "MobileNetV2 on digits"),
        (["model.name=nets:build", "data={kind: keras, name: mnist}"], "nets.build on mnist"),
        (["model.name=/a/net.keras", "data={kind: npz, path: 's3://b/c.npz'}"], "net on c"),
    ],
)
def test_run_name_says_model_data_and_time(overrides: list[str], name: str) -> None:
    found = run_name(load_config(overrides=overrides), datetime(2026, 1, 2, 3, 4, 5))
    assert found == f"{name}, 2026-01-02 03:04"
