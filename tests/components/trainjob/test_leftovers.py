"""TrainJobs of a run that is over."""

import logging

import pytest
from fake_kubernetes import FakeKubernetes

from qatline.components.trainjob.jobs import TrainJobs
from qatline.components.trainjob.kubernetes_api import KubernetesApi
from qatline.components.trainjob.leftovers import delete_leftovers
from qatline.components.trainjob.objects import FORMS, train_job
from qatline.components.trainjob.task import JobTemplate, WorkerTask


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
