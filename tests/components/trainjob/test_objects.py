"""TrainJobs as the API server takes them."""

from dataclasses import replace
from typing import Any

import pytest
from fake_kubernetes import FORMS, check_schema

from qatline.components.step_table import STEPS
from qatline.components.trainjob import objects
from qatline.components.trainjob.objects import job_name, train_job
from qatline.components.trainjob.task import JobTemplate, WorkerTask, read_variable

POD = {
    "nodeSelector": {"gpu": "l4"},
    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
}
MOUNTS = [{"name": "v", "mountPath": "/v"}]


def made(template: JobTemplate, task: WorkerTask, form: str = FORMS[-1], **env: str) -> Any:
    return train_job(template, task, run="1f2e", environment=env, form=form)


def test_train_job_says_image_nodes_and_command(template: JobTemplate, task: WorkerTask) -> None:
    job = made(template, task)
    check_schema(job, "TrainJob")
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "ClusterTrainingRuntime",
        "name": "qatline-tensorflow",
    }
    trainer = job["spec"]["trainer"]
    assert (trainer["image"], trainer["numNodes"]) == ("image:1", 2)
    assert trainer["command"] == ["python", "-m", "qatline.components.runtime.train_job_worker"]
    assert set(job["spec"]) == {"runtimeRef", "trainer"}
    assert "resourcesPerNode" not in trainer


def test_train_job_hands_the_task_on(template: JobTemplate, task: WorkerTask) -> None:
    variables = made(template, task)["spec"]["trainer"]["env"]
    values = {each["name"]: each["value"] for each in variables}
    assert values["QATLINE_WORKERS"] == "2"
    assert read_variable("QATLINE_WORKER_TASK", WorkerTask, values) == task


def test_train_job_keeps_dollars_from_being_replaced(
    template: JobTemplate, task: WorkerTask
) -> None:
    odd = replace(task, settings={"model": {"name": "$(HOME):x$"}})
    (text,) = (
        each["value"]
        for each in made(template, odd)["spec"]["trainer"]["env"]
        if each["name"] == "QATLINE_WORKER_TASK"
    )
    assert "$$(HOME):x$$" in text


def test_train_job_lets_the_launchers_variables_win(
    template: JobTemplate, task: WorkerTask
) -> None:
    env = [{"name": "A", "value": "old"}, {"name": "B", "value": "b"}]
    variables = made(replace(template, env=env), task, A="new")["spec"]["trainer"]["env"]
    assert [each for each in variables if each["name"] in "AB"] == [
        {"name": "B", "value": "b"},
        {"name": "A", "value": "new"},
    ]


def test_train_job_asks_for_resources_and_labels(template: JobTemplate, task: WorkerTask) -> None:
    resources = {"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": "1"}}
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    job = made(replace(template, resources=resources, labels=labels), task)
    check_schema(job, "TrainJob")
    assert job["spec"]["trainer"]["resourcesPerNode"] == resources
    assert job["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": "team",
        "qatline/run": "1f2e",
        "qatline/step": "train_baseline",
        "app.kubernetes.io/managed-by": "qatline",
    }


@pytest.mark.parametrize("form", FORMS)
def test_train_job_changes_the_pods_in_each_form(
    template: JobTemplate, task: WorkerTask, form: str
) -> None:
    job = made(replace(template, pod=POD, mounts=MOUNTS), task, form)
    others = tuple(each for each in FORMS if each != form)
    check_schema(job, "TrainJob", others)
    (change,) = job["spec"][form]
    if form == "runtimePatches":
        (node,) = change["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        pod = node["template"]["spec"]["template"]["spec"]
        assert node["name"] == "node"
    else:
        pod = change["spec"] if form == "podTemplateOverrides" else change
        assert change["targetJobs"] == [{"name": "node"}]
    assert pod["nodeSelector"] == {"gpu": "l4"}
    assert pod["containers"] == [{"name": "node", "volumeMounts": MOUNTS}]


def test_forms_are_those_of_the_schemas() -> None:
    assert sorted(objects.FORMS) == sorted(FORMS)


def test_schema_refuses_what_it_does_not_know(template: JobTemplate, task: WorkerTask) -> None:
    job = made(template, task)
    job["spec"]["trainer"]["colour"] = "red"
    with pytest.raises(ValueError, match="colour"):
        check_schema(job, "TrainJob")


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_job_name_leaves_room_for_pods(step: Any) -> None:
    run = "0b1f9c1e-6a0c-4a55-8f65-0f3f4a1f7c1e"
    name = job_name(run, step.name)
    assert len(f"{name}-node-0-99-abcde") <= 63
    assert name == job_name(run, step.name) != job_name(run[::-1], step.name)
