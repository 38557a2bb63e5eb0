"""Tasks and templates on their way through environment variables."""

from dataclasses import replace

import pytest

from qat_lib.errors import ConfigError
from qatline.components.trainjob.task import JobTemplate, WorkerTask, read_variable, to_json


def test_task_comes_back_from_its_variable(task: WorkerTask) -> None:
    assert read_variable("T", WorkerTask, {"T": to_json(task)}) == task


def test_template_comes_back_from_its_variable(template: JobTemplate) -> None:
    full = replace(
        template,
        resources={"limits": {"nvidia.com/gpu": "1"}},
        env=[{"name": "A", "value": "b"}],
        pod={"nodeSelector": {"a": "b"}},
        mounts=[{"name": "v", "mountPath": "/v"}],
        labels={"queue": "q"},
        keep="never",
    )
    assert read_variable("T", JobTemplate, {"T": to_json(full)}) == full


def test_digest_is_of_all_that_a_worker_is_told(task: WorkerTask) -> None:
    same = replace(task, settings=dict(task.settings))
    changed = (
        replace(task, seed=4),
        replace(task, output="s3://bucket/other"),
        replace(task, settings={"training": {"epochs": 2}}),
    )
    assert same.digest == task.digest
    assert len({each.digest for each in (task, *changed)}) == 4


@pytest.mark.parametrize("text", ["", "{", "{}", '{"nodes": 2}'])
def test_read_variable_names_what_it_can_not_read(text: str) -> None:
    with pytest.raises(ConfigError, match=r"QATLINE_X: expected a JobTemplate as JSON.*Compile"):
        read_variable("QATLINE_X", JobTemplate, {"QATLINE_X": text})
