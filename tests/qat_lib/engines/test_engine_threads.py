"""Engines of every backend serve threads fairly and close during use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeDevice, FakeTensorRT
from fake_tensorrt import VERSIONS
from reference_networks import ResidualNetwork, write_network

from qat_lib.engines import BuildSpec, Engine, RequestLimits, build_engine, load_engine
from qat_lib.engines.tensorrt import backend as backend_module
from qat_lib.errors import EngineBusyError, EngineError, EngineLoadError

THREADS = 8
REQUESTS = 800
Load = Callable[..., Engine]


@pytest.fixture(scope="module")
def qdq_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(
        tmp_path_factory.mktemp("onnx") / "qdq.onnx", ResidualNetwork(), "int8", weights="qdq"
    )


@pytest.fixture(
    scope="module",
    params=["openvino", "onnxruntime", *(f"tensorrt {version}" for version in VERSIONS)],
)
def load(
    request: pytest.FixtureRequest, qdq_onnx: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Load]:
    """``load(limits)`` loads one backend's engine.

    TensorRT is the strict fake of each version.
    """
    name, _, version = request.param.partition(" ")
    output = tmp_path_factory.mktemp(name) / "m.engine"
    with pytest.MonkeyPatch.context() as patch:
        fake = install_fake(version, patch) if version else None
        if fake is None:
            pytest.importorskip(name)
        build_engine(qdq_onnx, BuildSpec(backend=name, max_batch_size=4), output=output)  # type: ignore[arg-type]
        yield lambda **limits: load_engine(output, limits=RequestLimits(**limits))
        assert fake is None or fake.device.leaked == 0


def install_fake(version: str, patch: pytest.MonkeyPatch) -> FakeTensorRT:
    fake = FakeTensorRT(version, FakeDevice())
    patch.setattr(backend_module, "import_tensorrt", lambda: fake.module)
    patch.setattr(backend_module, "CudaDevice", lambda: fake.device)
    return fake


def slow_down(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let ``engine``'s requests run until the returned event is set."""
    run, go_on = engine._run, threading.Event()

    def wait(request: Any, values: list[Any]) -> dict[str, Any]:
        assert go_on.wait(30)
        return run(request, values)

    monkeypatch.setattr(engine, "_run", wait)
    return go_on


@pytest.mark.matrix_except("openvino", "tensorrt 10.16")
def test_threads_get_equal_shares_and_right_answers(load: Load) -> None:
    counts = [0] * THREADS
    ready = threading.Barrier(THREADS)
    with load() as engine:
        batches = [engine.random_batch(1 + index % 4, seed=index) for index in range(THREADS)]
        expected = [engine.infer(batch)["logits"] for batch in batches]

        def send(index: int) -> None:
            ready.wait(30)
            while sum(counts) < REQUESTS:
                np.testing.assert_array_equal(
                    engine.infer(batches[index])["logits"], expected[index]
                )
                counts[index] += 1

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(send, range(THREADS)))
    assert min(counts) >= sum(counts) / THREADS / 2, counts


def test_engine_closes_while_threads_use_it(load: Load) -> None:
    engine = load()
    batch = engine.random_batch(1)
    served = threading.Event()

    def send() -> str:
        while True:
            try:
                engine.infer(batch)
            except EngineLoadError as error:
                return str(error)
            served.set()

    with ThreadPoolExecutor(4) as threads:
        senders = [threads.submit(send) for _ in range(4)]
        assert served.wait(30)
        engine.close()
        assert all("The engine is closed. Load it again" in sender.result(30) for sender in senders)
    engine.close()  # a second time changes nothing
    for use in (lambda: engine.infer(batch), engine.layers, engine.benchmark):
        with pytest.raises(EngineError, match="closed"):
            use()


def test_close_waits_for_those_who_came_before(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(parallel=1)
    batch = engine.random_batch(2)
    go_on = slow_down(engine, monkeypatch)
    with ThreadPoolExecutor(4) as threads:
        requests = [threads.submit(engine.infer, batch) for _ in range(3)]
        wait_until(lambda: len(engine._pool._queue) == 2)
        closing = threads.submit(engine.close)
        go_on.set()
        assert [request.result(30)["logits"].shape for request in requests] == [(2, 10)] * 3
        closing.result(30)


def test_callers_that_are_too_many_or_wait_too_long(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(parallel=1, waiting=1, timeout=0.3) as engine, ThreadPoolExecutor(2) as threads:
        batch = engine.random_batch(1)
        go_on = slow_down(engine, monkeypatch)
        running = threads.submit(engine.infer, batch)
        wait_until(lambda: engine._pool._lent == 1)
        waiting = threads.submit(engine.infer, batch)
        wait_until(lambda: len(engine._pool._queue) == 1)
        with pytest.raises(EngineBusyError, match="which is the limit"):
            engine.infer(batch)
        with pytest.raises(EngineBusyError, match=r"within 0.3 s"):
            waiting.result(30)
        go_on.set()
        assert running.result(30)["logits"].shape == (1, 10)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_failed_request_gives_its_place_back(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(parallel=1, timeout=5.0) as engine:
        batch = engine.random_batch(1)
        run = engine._run
        monkeypatch.setattr(engine, "_run", lambda *_: 1 / 0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                engine.infer(batch)
        monkeypatch.setattr(engine, "_run", run)
        engine.infer(batch)


def test_gpu_memory_for_one_context_is_enough(
    qdq_onnx: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = install_fake("10.16", monkeypatch)
    build_engine(
        qdq_onnx, BuildSpec(backend="tensorrt", max_batch_size=4), output=tmp_path / "m.engine"
    )
    fake.contexts_left = 1
    with load_engine(tmp_path / "m.engine") as engine, ThreadPoolExecutor(4) as threads:
        batch = engine.random_batch(2)
        answers = list(threads.map(lambda _: engine.infer(batch)["logits"], range(40)))
    for answer in answers:
        np.testing.assert_array_equal(answer, answers[0])
    assert fake.device.leaked == 0


def test_one_thread_needs_one_context(
    qdq_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install_fake("11.4", monkeypatch)
    build_engine(
        qdq_onnx, BuildSpec(backend="tensorrt", max_batch_size=4), output=tmp_path / "m.engine"
    )
    fake.calls.clear()
    with load_engine(tmp_path / "m.engine") as engine:
        for size in (1, 4, 2):
            engine.infer(engine.random_batch(size))
    assert fake.calls.count("ICudaEngine.create_execution_context") == 1
