"""Several workers on loopback: the weights of one, the same state on each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from qat_lib.errors import StepError
from qatline.components.workers.worker_config import TF_CONFIG_VARIABLE, WorkerConfig
from qatline.components.workers.workers import Workers, current_workers, lost_workers_named
from tests.components.training import interrupted, one_worker

ROOT = Path(__file__).parents[3]


def free_hosts(count: int) -> tuple[str, ...]:
    hosts = []
    with ExitStack() as stack:
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            hosts.append(f"127.0.0.1:{listener.getsockname()[1]}")
    return tuple(hosts)


def train(folder: Path, case: str, count: int) -> list[dict[str, np.ndarray]]:
    """Return what each of ``count`` workers ended with."""
    hosts, processes = free_hosts(count), []
    for index in range(count):
        config = WorkerConfig(hosts=hosts, index=index).to_text()
        environment = {**os.environ, TF_CONFIG_VARIABLE: config, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", one_worker.__name__, case, str(folder)]
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environment))
    assert [process.wait(600) for process in processes] == [0] * count
    return [dict(np.load(folder / f"{index}-of-{count}.npz")) for index in range(count)]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("case", "count"),
    [
        ("split", 2),
        pytest.param("split-learned", 3, marks=pytest.mark.slow),
        pytest.param("split-baseline", 3, marks=pytest.mark.slow),
    ],
)
def test_workers_end_with_the_weights_of_one(tmp_path: Path, case: str, count: int) -> None:
    assert case in interrupted.SPLIT_CASES
    (alone,) = train(tmp_path, case, 1)
    first, *others = train(tmp_path, case, count)
    for name, value in alone.items():
        for other in others:
            np.testing.assert_array_equal(other[name], first[name], err_msg=name)
        if name.startswith("variable"):
            np.testing.assert_allclose(first[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
        elif name.startswith("row"):
            found, expected = (dict(row) for row in (first[name], value))
            assert found.keys() == expected.keys()
            for key, figure in expected.items():
                assert float(found[key]) == pytest.approx(float(figure), rel=1e-3, abs=1e-5), key


def test_one_worker_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TF_CONFIG_VARIABLE, raising=False)
    workers = current_workers()
    assert (workers.alone, workers.index, workers.count) == (True, 0, 1)
    assert workers.share({"a": 1}) == {"a": 1}
    assert workers.run(max, 2, 3) == 3
    assert workers.total([1, 2]) == [1, 2]


@pytest.mark.parametrize(
    ("rows", "whole", "expected"),
    [(7, 20, (0.35, 0.35)), (1, 3, (1 / 3, 1 / 3)), (2, 2, (1 / 3, 1.0))],
)
def test_shares_of_a_batch(rows: int, whole: int, expected: tuple[float, float]) -> None:
    """Two rows for three workers are at each of them."""
    found = Workers(0, 3).shares(np.int32(rows), np.int32(whole))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


class UnavailableError(Exception):
    """As TensorFlow's is called."""


def test_an_error_of_one_worker_alone_stays_as_it_is() -> None:
    with pytest.raises(UnavailableError), lost_workers_named():
        raise UnavailableError


def test_a_lost_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qatline.components.workers.workers.current_workers", lambda: Workers(1, 2))
    with (
        pytest.raises(StepError, match="another worker of this training ended"),
        lost_workers_named(),
    ):
        raise UnavailableError
    with pytest.raises(ValueError, match="own"), lost_workers_named():
        raise ValueError("own")
