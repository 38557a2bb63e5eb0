import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from qat_lib.errors import StorageError
from qatline.components.store import key_lock
from qatline.components.store.key_lock import held, this_process

HOLDER = """
    import sys, time
    from pathlib import Path
    from qatline.components.store.key_lock import held
    with held(Path(sys.argv[1]), print):
        print("held", flush=True)
        time.sleep(120)
"""


def test_held_reports_holder_and_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QATLINE_RUN", "20260101-a")
    path, told, order = tmp_path / "step" / "key.lock", [], []

    def second() -> None:
        with held(path, told.append):
            order.append("second")

    with held(path, told.append):
        waiter = threading.Thread(target=second)
        waiter.start()
        deadline = time.monotonic() + 30
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
        order.append("first")
    waiter.join(30)
    assert order == ["first", "second"]
    assert told == [f"run 20260101-a (process {os.getpid()} on {os.uname().nodename})", ""]
    assert list(path.parent.iterdir()) == []


def test_held_is_free_once_its_holder_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "key.lock"
    code = "\n".join(line[4:] for line in HOLDER.splitlines())
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    threading.Timer(0.5, holder.send_signal, [signal.SIGKILL]).start()
    told: list[str] = []
    with held(path, told.append):
        assert holder.wait(timeout=30) == -signal.SIGKILL
    holder.communicate()
    assert told[0].startswith(f"process {holder.pid} on ")
    assert not path.exists()


def test_held_lets_one_in_at_a_time(tmp_path: Path) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with held(tmp_path / "key.lock", lambda holder: None):
            inside += 1
            most = max(most, inside)
            time.sleep(0.005)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1
    assert list(tmp_path.iterdir()) == []


def test_held_tells_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StorageError, match="can't be written"),
        held(tmp_path / "file" / "key.lock", print),
    ):
        pass


def test_this_process_is_named_without_a_run() -> None:
    assert this_process().startswith(f"process {os.getpid()} on ")


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[int]:
    """The descriptor of a held lock file; closing it releases the lock."""
    descriptor = os.open(tmp_path / "key.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield descriptor
    with suppress(OSError):
        os.close(descriptor)


def test_held_reports_each_holder_once(
    tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder writes its name only after taking the lock.

    Another may come before us.
    """
    writes = iter(["", "one", "one", "two", "", None])
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        name = next(writes)
        if name is None:
            os.close(taken)
        else:
            os.ftruncate(taken, 0)
            os.pwrite(taken, name.encode(), 0)

    monkeypatch.setattr(key_lock.time, "sleep", sleep)
    told: list[str] = []
    with held(tmp_path / "key.lock", told.append):
        assert told == ["one", "two", ""]
    assert pauses == [0.2] * 6


def test_held_closes_the_file_when_waiting_is_interrupted(tmp_path: Path, taken: int) -> None:
    def interrupted(holder: str) -> None:
        raise KeyboardInterrupt

    os.pwrite(taken, b"somebody", 0)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(KeyboardInterrupt), held(tmp_path / "key.lock", interrupted):
        pytest.fail("the lock was taken")
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("replaced", [False, True])
def test_held_opens_again_what_was_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    path, flock, calls = tmp_path / "key.lock", fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            path.rename(tmp_path / "gone")
            if replaced:
                path.touch()
        flock(descriptor, operation)

    monkeypatch.setattr(key_lock.fcntl, "flock", late)
    with held(path, pytest.fail):
        assert path.read_text() == this_process()
    assert len(calls) == 2


def test_held_succeeds_without_file_system_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(key_lock.fcntl, "flock", no_locks)
    with held(tmp_path / "key.lock", pytest.fail), held(tmp_path / "key.lock", pytest.fail):
        pass
    assert caplog.messages == ["this file system has no locks: [Errno 37] No locks available"] * 2


def test_held_writes_process_into_readable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QATLINE_RUN", "r" * 600)
    path = tmp_path / "deep" / "er" / "key.lock"
    before = os.umask(0o022)
    try:
        with held(path, pytest.fail):
            assert path.stat().st_mode & 0o777 == 0o644
            assert path.read_text() == "run " + "r" * 496
            path.unlink()  # whoever cleans up by hand does no harm
    finally:
        os.umask(before)
