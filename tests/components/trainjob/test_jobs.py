"""TrainJobs in the cluster: the forms of Trainer's versions, refusals, what is missing."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_kubernetes import FakeKubernetes

from qatline.components.trainjob.jobs import TrainJobs, delete_leftovers
from qatline.components.trainjob.kubernetes_api import KubernetesApi, KubernetesError
from qatline.components.trainjob.objects import FORMS, train_job
from qatline.components.trainjob.task import JobTemplate, WorkerTask

Make = Callable[[str], dict[str, Any]]


@pytest.fixture
def make(template: JobTemplate, task: WorkerTask) -> Make:
    changed = replace(template, pod={"nodeSelector": {"gpu": "l4"}})
    return lambda form: train_job(changed, task, run="1f2e", environment={}, form=form)


@pytest.mark.parametrize("known", FORMS)
def test_create_uses_the_form_that_the_server_knows(
    cluster: FakeKubernetes, api: KubernetesApi, make: Make, known: str
) -> None:
    cluster.unknown = tuple(each for each in FORMS if each != known)
    spec = TrainJobs(api).create(make)["spec"]
    assert [each for each in FORMS if each in spec] == [known]


def test_create_ends_with_the_last_refusal(
    cluster: FakeKubernetes, api: KubernetesApi, make: Make
) -> None:
    cluster.unknown = FORMS
    with pytest.raises(KubernetesError, match=r'answers 400: .*unknown field "spec\.podSpecOverr'):
        TrainJobs(api).create(make)


def test_create_returns_the_one_of_the_name(
    cluster: FakeKubernetes, api: KubernetesApi, make: Make
) -> None:
    first = TrainJobs(api).create(make)
    assert TrainJobs(api).create(make) == first
    assert len(cluster.jobs) == 1


def test_create_after_a_lost_answer_makes_one(
    cluster: FakeKubernetes, api: KubernetesApi, make: Make
) -> None:
    # The server creates it, and the connection breaks before the answer.
    cluster.started = lambda _: cluster.faults.append(503)
    created = TrainJobs(api).create(make)
    assert list(cluster.jobs) == [created["metadata"]["name"]]


def test_find_and_delete_take_a_missing_one(
    cluster: FakeKubernetes, api: KubernetesApi, make: Make
) -> None:
    jobs = TrainJobs(api)
    assert jobs.find("nothing") is None
    jobs.delete("nothing")
    name = jobs.create(make)["metadata"]["name"]
    assert jobs.find(name) is not None
    jobs.delete(name)
    assert jobs.find(name) is None


def test_of_run_lists_the_jobs_of_one_run(
    cluster: FakeKubernetes, api: KubernetesApi, make: Make
) -> None:
    created = TrainJobs(api).create(make)
    assert TrainJobs(api).of_run("1f2e") == [created]
    assert TrainJobs(api).of_run("other") == []


@pytest.mark.parametrize("call", ["find", "create", "delete", "of_run"])
def test_a_cluster_without_trainer_is_told(
    cluster: FakeKubernetes, api: KubernetesApi, make: Make, call: str
) -> None:
    cluster.installed = False
    argument = make if call == "create" else "name"
    if call == "delete":  # nothing to delete is no error
        TrainJobs(api).delete("name")
        return
    with pytest.raises(KubernetesError, match=r"no TrainJobs .*Install Kubeflow Trainer v2.*qatli"):
        getattr(TrainJobs(api), call)(argument)


def test_a_missing_runtime_is_told(cluster: FakeKubernetes, api: KubernetesApi, make: Make) -> None:
    cluster.runtimes = set()
    with pytest.raises(
        KubernetesError, match=r"The ClusterTrainingRuntime 'qatline-tensorflow' must be there: qat"
    ):
        TrainJobs(api).create(make)


def test_missing_rights_are_told(cluster: FakeKubernetes, api: KubernetesApi, make: Make) -> None:
    cluster.rules = [{**rule, "verbs": ["get"]} for rule in cluster.rules]
    with pytest.raises(KubernetesError, match="Let the service account of the run create TrainJob"):
        TrainJobs(api).create(make)


def create(api: KubernetesApi, template: JobTemplate, task: WorkerTask, run: str) -> str:
    def make(form: str) -> dict[str, object]:
        return train_job(template, task, run=run, environment={}, form=form)

    TrainJobs(api).create(make)
    return str(make(FORMS[0])["metadata"]["name"])  # type: ignore[index]


def test_delete_leftovers_ends_what_the_run_left_running(
    cluster: FakeKubernetes, api: KubernetesApi, template: JobTemplate, task: WorkerTask
) -> None:
    mine, other = (create(api, template, task, run) for run in ("1", "2"))
    assert delete_leftovers("1", api) == [mine]
    assert list(cluster.jobs) == [other]


def test_delete_leftovers_leaves_what_has_ended(
    cluster: FakeKubernetes, api: KubernetesApi, template: JobTemplate, task: WorkerTask
) -> None:
    cluster.end(create(api, template, task, "1"), "Failed")
    assert delete_leftovers("1", api) == []
    assert len(cluster.jobs) == 1


def test_delete_leftovers_fails_no_run(
    cluster: FakeKubernetes, api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    cluster.installed = False
    assert delete_leftovers("1", api) == []
    assert "TrainJobs of run 1 may be left in the cluster: The cluster has no TrainJ" in caplog.text
