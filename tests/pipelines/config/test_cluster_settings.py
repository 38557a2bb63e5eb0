"""The cluster section: values of pods, images, and what they make together."""

import re
from typing import Any

import pytest

from qat_lib.errors import ConfigError
from qatline.pipelines.config.run_config import build_config, load_config


def pod(*overrides: str) -> Any:
    return load_config(overrides=overrides).cluster.of("evaluate")


def test_durations_are_kept_in_seconds() -> None:
    found = pod("cluster={timeout: 2h, retry: {limit: 2, backoff: 30s}}")
    assert (found.timeout, found.retry.backoff, found.retry.factor) == (7200, 30, 2.0)
    assert found.retry.max_duration == 7 * 86_400


def test_step_overrides_environment_and_volumes() -> None:
    found = pod(
        "cluster={env: {A: '1'}, volumes: [{claim: data, path: /data}]}",
        "cluster.steps.evaluate={env: {B: '2'}}",
    )
    assert found.env == {"B": "2"}
    assert [volume.path for volume in found.volumes] == ["/data"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "cluster={env: {A: b}, secret_env: {A: s/k}}",
            "cluster: expected A in env or in secret_env, received it in both",
        ),
        (
            "cluster={env: {A: b}, steps: {evaluate: {secret_env: {A: s/k}}}}",
            "cluster.steps.evaluate: expected A in env or in secret_env",
        ),
        (
            "cluster.env={MLFLOW_TRACKING_URI: 'http://m'}",
            "cluster: expected the section tracking to set MLFLOW_TRACKING_URI",
        ),
        (
            "cluster.secret_env={QATLINE_TRACKING: a/b}",
            "cluster: expected the section tracking to set QATLINE_TRACKING",
        ),
        (
            "cluster.volumes=[{claim: a, path: /data}, {claim: b, path: /data/}]",
            "cluster.volumes: expected a different folder for each, received /data twice",
        ),
        ("cluster.volumes=[{claim: a}]", "cluster.volumes.0.path"),
        ("cluster.volumes=[{claim: A_b, path: /d}]", "expected the name of a Kubernetes object"),
        ("cluster.timeout=2 hours", "cluster.timeout: expected a duration such as 90s"),
        ("cluster.retry={limit: -1}", "cluster.retry.limit: expected a number of at least 0"),
        ("cluster.images.modules=[a.b]", "expected names of top-level modules"),
        ("cluster.images.tensorrt=latest", "cluster.images.tensorrt"),
        ("cluster.images.train=A", "cluster.images.train: expected a container image"),
        ("cluster.service_account=Me", "cluster.service_account: expected the name"),
    ],
)
def test_what_a_cluster_would_refuse_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(overrides=[override])


@pytest.mark.parametrize("name", ["API_TOKEN", "MLFLOW_TRACKING_PASSWORD"])
def test_plain_environment_takes_no_secret(name: str) -> None:
    with pytest.raises(ConfigError, match="expected no secret, received one") as caught:
        build_config({"cluster": {"env": {name: "hunter2hunter2"}}})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "https://hooks.slack.com/services/T0/B0/hunter2",
        "https://discord.com/api/webhooks/1/hunter2",
        "https://me.webhook.office.com/webhookb2/hunter2",
        "https://chat.googleapis.com/v1/spaces/hunter2",
    ],
)
def test_webhook_takes_no_address_of_a_chat_service(address: str) -> None:
    with pytest.raises(ConfigError, match="expected no secret, received one") as caught:
        build_config({"cluster": {"webhook": address}})
    assert "hunter2" not in str(caught.value)


def test_the_section_round_trips() -> None:
    cluster = {
        "env": {"AWS_ENDPOINT_URL_S3": "https://s3.example"},
        "volumes": [{"claim": "data", "path": "/data", "sub_path": "images"}],
        "image_pull_secrets": ["registry"],
        "retry": {"limit": 2},
        "images": {"train": "r.example/a:1", "modules": ["nets"], "tensorrt": "10.16.1.11"},
        "service_account": "runner",
        "run_timeout": "12h",
    }
    config = build_config({"cluster": cluster})
    assert build_config(config.to_dict()) == config
    assert config.cluster.run_timeout == 43_200
