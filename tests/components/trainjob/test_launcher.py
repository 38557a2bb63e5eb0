"""A step as a TrainJob from its creation to its end, on a fake API server."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_kubernetes import FakeKubernetes

from qat_lib.errors import StorageError
from qatline.components.trainjob import launcher as module
from qatline.components.trainjob.kubernetes_api import KubernetesApi, KubernetesError
from qatline.components.trainjob.launcher import Launcher, TrainJobError
from qatline.components.trainjob.objects import job_name
from qatline.components.trainjob.task import JobTemplate, WorkerTask

NAME = job_name("1f2e", "train_baseline")


class Script:
    """What happens in the cluster at each look of the launcher, in order."""

    def __init__(self, *events: Callable[[], object]) -> None:
        self.events = list(events)
        self.pauses: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)
        assert self.events, "the launcher waits for what does not come"
        self.events.pop(0)()


@pytest.fixture
def make(api: KubernetesApi, template: JobTemplate, task: WorkerTask) -> Callable[..., Launcher]:
    def make(*events: Callable[[], object], **changes: Any) -> Launcher:
        plain = Launcher(
            api=api, template=template, task=task, run="1f2e", environment={}, sleep=Script(*events)
        )
        return replace(plain, **changes)

    return make


@pytest.fixture
def taken() -> list[str]:
    return []


def test_a_complete_job_is_deleted_after_its_output_is_taken(
    cluster: FakeKubernetes, make: Callable[..., Launcher], taken: list[str]
) -> None:
    def take() -> None:
        taken.extend(cluster.jobs)

    make(
        lambda: cluster.count(NAME, active=1),
        lambda: cluster.end(NAME, "Complete"),
    ).run_to_end(take)
    assert taken == [NAME]
    assert cluster.jobs == {}


@pytest.mark.parametrize(
    ("keep", "condition", "left"),
    [
        ("failed", "Complete", False),
        ("failed", "Failed", True),
        ("always", "Complete", True),
        ("always", "Failed", True),
        ("never", "Complete", False),
        ("never", "Failed", False),
    ],
)
def test_ended_jobs_are_left_as_the_config_says(
    cluster: FakeKubernetes,
    make: Callable[..., Launcher],
    template: JobTemplate,
    keep: Any,
    condition: str,
    left: bool,
) -> None:
    launcher = make(lambda: cluster.end(NAME, condition), template=replace(template, keep=keep))
    if condition == "Complete":
        launcher.run_to_end(lambda: None)
    else:
        with pytest.raises(TrainJobError) as caught:
            launcher.run_to_end(lambda: None)
        assert ("kubectl describe trainjob" in str(caught.value)) is left
    assert (NAME in cluster.jobs) is left


def test_a_failed_job_is_told_with_the_log_of_its_first_failed_pod(
    cluster: FakeKubernetes, make: Callable[..., Launcher]
) -> None:
    def fail() -> None:
        for index, (code, second) in enumerate(((143, 9), (1, 2))):
            ended = {"exitCode": code, "finishedAt": f"2026-11-22T20:00:0{second}Z"}
            name = cluster.add_pod(NAME, index, {"terminated": ended})
            cluster.logs[name] = f"epoch 3\nworker {index} says why\n"
        cluster.end(NAME, "Failed", "jobset failed")

    with pytest.raises(TrainJobError) as caught:
        make(fail).run_to_end(lambda: None)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"TrainJob team/{NAME} failed: JobsFailed: jobset failed"
    assert lines[1] == f"Worker 1 (pod {NAME}-node-0-1-x1y) ended with exit code 1: Error."
    assert lines[-2] == "worker 1 says why"


def test_what_keeps_pods_waiting_is_logged_once(
    cluster: FakeKubernetes, make: Callable[..., Launcher], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    make(
        lambda: cluster.add_pod(NAME, 0, waiting),
        lambda: None,
        lambda: cluster.add_pod(NAME, 0, {"terminated": {"exitCode": 1}}),
        lambda: cluster.end(NAME, "Complete"),
    ).run_to_end(lambda: None)
    told = [line for line in caplog.messages if "pod" in line]
    assert told == [
        f"TrainJob {NAME}: pod {NAME}-node-0-0-x0y waits: ErrImagePull: no such image",
        f"TrainJob {NAME}: pod {NAME}-node-0-0-x0y ended with exit code 1",
    ]


def test_missing_rights_to_see_pods_stop_nothing(
    cluster: FakeKubernetes, make: Callable[..., Launcher], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster.rules = [rule for rule in cluster.rules if "pods" not in rule["resources"]]
    make(lambda: cluster.end(NAME, "Complete")).run_to_end(lambda: None)
    assert "its pods can't be seen" in caplog.text
    with pytest.raises(TrainJobError, match=r"Its pods can't be seen: .*answers 403"):
        make(lambda: cluster.end(NAME, "Failed")).run_to_end(lambda: None)


def test_a_launcher_that_is_started_again_takes_its_job_up(
    cluster: FakeKubernetes, make: Callable[..., Launcher], taken: list[str]
) -> None:
    def die() -> None:
        raise KubernetesError("away")

    with pytest.raises(KubernetesError, match="away"):
        make(die).run_to_end(lambda: None)
    uid = cluster.jobs[NAME]["metadata"]["uid"]
    make(lambda: cluster.end(NAME, "Complete")).run_to_end(lambda: taken.append(uid))
    assert taken == [uid]
    assert cluster.calls.count("create trainjobs") == 1


def test_a_job_that_ended_meanwhile_is_not_run_again(
    cluster: FakeKubernetes, make: Callable[..., Launcher], taken: list[str]
) -> None:
    make().jobs.create(make()._object)
    cluster.end(NAME, "Complete")
    make().run_to_end(lambda: taken.append("taken"))
    assert taken == ["taken"]
    assert cluster.calls.count("create trainjobs") == 1


def test_a_failed_job_of_an_earlier_attempt_is_replaced(
    cluster: FakeKubernetes, make: Callable[..., Launcher]
) -> None:
    with pytest.raises(TrainJobError):
        make(lambda: cluster.end(NAME, "Failed")).run_to_end(lambda: None)
    cluster.lingers = 2
    make(lambda: None, lambda: None, lambda: cluster.end(NAME, "Complete")).run_to_end(lambda: None)
    assert cluster.calls.count("create trainjobs") == 2


def test_a_job_that_is_being_deleted_is_waited_for(
    cluster: FakeKubernetes, make: Callable[..., Launcher]
) -> None:
    make().jobs.create(make()._object)
    cluster.lingers = 3
    make().jobs.delete(NAME)
    make(lambda: None, lambda: cluster.end(NAME, "Complete")).run_to_end(lambda: None)
    assert cluster.calls.count("create trainjobs") == 2


def test_a_job_that_stays_is_told(
    cluster: FakeKubernetes, make: Callable[..., Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    make().jobs.create(make()._object)
    cluster.end(NAME, "Failed")
    cluster.lingers = 100
    monkeypatch.setattr(module, "_REMOVAL", 10.0)
    with pytest.raises(TrainJobError, match="still exists after 10 s"):
        make(lambda: None, lambda: None).run_to_end(lambda: None)


def test_a_running_job_of_another_task_is_left(
    cluster: FakeKubernetes, make: Callable[..., Launcher], task: WorkerTask
) -> None:
    make().jobs.create(make()._object)
    other = make(task=replace(task, seed=99))
    with pytest.raises(TrainJobError, match="received one that runs with other settings"):
        other.run_to_end(lambda: None)
    cluster.end(NAME, "Complete")
    replaced = make(lambda: cluster.end(NAME, "Complete"), task=replace(task, seed=99))
    replaced.run_to_end(lambda: None)
    assert cluster.calls.count("create trainjobs") == 2


def test_a_deleted_job_is_told(cluster: FakeKubernetes, make: Callable[..., Launcher]) -> None:
    with pytest.raises(TrainJobError, match="was deleted in team while it ran"):
        make(cluster.jobs.clear).run_to_end(lambda: None)


def test_a_job_that_another_one_replaced_is_told(
    cluster: FakeKubernetes, make: Callable[..., Launcher]
) -> None:
    def replace_it() -> None:
        cluster.jobs[NAME]["metadata"]["uid"] = "another"

    with pytest.raises(TrainJobError, match="was deleted"):
        make(replace_it).run_to_end(lambda: None)


def test_an_output_that_is_not_whole_is_told_and_not_taken_up_again(
    cluster: FakeKubernetes, make: Callable[..., Launcher]
) -> None:
    def take() -> None:
        raise StorageError("s3://b/o is not finished")

    with pytest.raises(TrainJobError, match="complete, but its output is not: s3://b/o is not fin"):
        make(lambda: cluster.end(NAME, "Complete")).run_to_end(take)
    assert cluster.jobs == {}


def test_faults_while_it_watches_are_passed_over(
    cluster: FakeKubernetes, make: Callable[..., Launcher]
) -> None:
    def fault() -> None:
        cluster.faults += [503, None, 429]

    make(fault, lambda: cluster.end(NAME, "Complete")).run_to_end(lambda: None)
    assert cluster.faults == []
    assert cluster.jobs == {}


def test_a_job_that_can_not_be_deleted_does_not_fail_the_step(
    cluster: FakeKubernetes, make: Callable[..., Launcher], caplog: pytest.LogCaptureFixture
) -> None:
    rules = [{**rule, "verbs": ["create", "get", "list"]} for rule in cluster.rules]
    cluster.rules = rules
    make(lambda: cluster.end(NAME, "Complete")).run_to_end(lambda: None)
    assert f"TrainJob {NAME} is left in the cluster" in caplog.text


def test_cancel_deletes_the_job(cluster: FakeKubernetes, make: Callable[..., Launcher]) -> None:
    make().jobs.create(make()._object)
    make().cancel()
    assert cluster.jobs == {}
