"""The cluster section in the compiled pipeline: pods, attempts, images."""

from typing import Any

import yaml

from pipelines.cluster.compile import pipeline_ir
from pipelines.config.run_config import load_config
from pipelines.steps import IMAGE_OF, STEP_ARTIFACTS


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
