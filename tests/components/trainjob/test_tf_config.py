"""TF_CONFIG from what JobSet and Kubernetes tell a pod."""

import json

import pytest

from qat_lib.errors import ConfigError, StepError
from qatline.components.trainjob.tf_config import derive_worker_config, wait_for_hosts

POD = {
    "QATLINE_JOBSET": "train",
    "QATLINE_REPLICATED_JOB": "node",
    "QATLINE_JOB_INDEX": "0",
    "QATLINE_WORKERS": "3",
    "JOB_COMPLETION_INDEX": "2",
}


def test_derive_worker_config_names_each_pod_of_the_jobset() -> None:
    found = derive_worker_config(POD)
    assert (found.hosts, found.index) == (
        ("train-node-0-0.train:2222", "train-node-0-1.train:2222", "train-node-0-2.train:2222"),
        2,
    )


def test_derive_worker_config_uses_the_names_of_the_pod() -> None:
    found = derive_worker_config({**POD, "QATLINE_REPLICATED_JOB": "w", "QATLINE_JOB_INDEX": "4"})
    assert found.hosts[1] == "train-w-4-1.train:2222"


def test_derive_worker_config_takes_addresses() -> None:
    found = derive_worker_config({**POD, "QATLINE_WORKER_ADDRESSES": "a:1,b:2,c:3"})
    assert found.hosts == ("a:1", "b:2", "c:3")


def test_derive_worker_config_leaves_a_given_one() -> None:
    given = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
    found = derive_worker_config({"TF_CONFIG": json.dumps(given)})
    assert json.loads(found.to_text()) == given


@pytest.mark.parametrize(
    "given",
    [
        "{",
        "[]",
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}',
    ],
)
def test_derive_worker_config_refuses_a_wrong_one(given: str) -> None:
    with pytest.raises(StepError, match="TF_CONFIG: expected"):
        derive_worker_config({"TF_CONFIG": given})


@pytest.mark.parametrize("name", ["QATLINE_JOBSET", "QATLINE_WORKERS", "JOB_COMPLETION_INDEX"])
def test_derive_worker_config_names_the_variable_that_is_missing(name: str) -> None:
    with pytest.raises(ConfigError, match=f"Expected {name} in the environment of the pod"):
        derive_worker_config({key: value for key, value in POD.items() if key != name})


@pytest.mark.parametrize(
    "wrong", [{"JOB_COMPLETION_INDEX": "3"}, {"QATLINE_WORKER_ADDRESSES": "a:1,b:2"}]
)
def test_derive_worker_config_refuses_numbers_that_disagree(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="must be one number"):
        derive_worker_config({**POD, **wrong})


def test_wait_for_hosts_waits_until_each_has_an_address() -> None:
    asked: list[str] = []

    def resolve(host: str) -> str:
        asked.append(host)
        if asked.count(host) < 3:
            raise OSError("no such name")
        return "10.0.0.1"

    pauses: list[float] = []
    wait_for_hosts(["a:1", "b:2"], 60, resolve=resolve, sleep=pauses.append)
    assert asked == ["a"] * 3 + ["b"] * 3
    assert len(pauses) == 4


def test_wait_for_hosts_names_the_one_that_does_not_come() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def resolve(host: str) -> None:
        if host == "b":
            raise OSError("no such name")

    with pytest.raises(StepError, match="every worker within 10 s; b has none"):
        wait_for_hosts(["a:1", "b:2"], 10, resolve=resolve, sleep=sleep, clock=lambda: now[0])
    assert 5 < now[0] <= 10
