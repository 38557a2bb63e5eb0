"""What ``TF_CONFIG`` may say."""

import json

import pytest

from qat_lib.errors import StepError
from qatline.components.workers.worker_config import (
    TF_CONFIG_VARIABLE,
    WorkerConfig,
    read_worker_config,
)


def test_config_is_read_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    config = WorkerConfig(hosts=("a:1", "b:2"), index=1)
    monkeypatch.setenv(TF_CONFIG_VARIABLE, config.to_text())
    assert read_worker_config() == config
    monkeypatch.setenv(TF_CONFIG_VARIABLE, "")
    assert read_worker_config() is None


@pytest.mark.parametrize(
    "content",
    [
        "no JSON",
        "{}",
        json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}),
        json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}),
        json.dumps(
            {"cluster": {"worker": ["a:1"], "ps": []}, "task": {"type": "worker", "index": 0}}
        ),
    ],
)
def test_config_of_something_else_is_refused(monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setenv(TF_CONFIG_VARIABLE, content)
    with pytest.raises(StepError, match="TF_CONFIG: expected"):
        read_worker_config()
