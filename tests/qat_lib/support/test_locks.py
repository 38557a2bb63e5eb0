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

from qat_lib.support.locks import LockTimeoutError, file_lock

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from qat_lib.support.locks import file_lock
with file_lock(Path(sys.argv[1]), owner="somebody") as lock:
    if sys.argv[2:]:
        child = subprocess.Popen(["sleep", "60"], pass_fds=lock)
        print(child.pid, flush=True)
    print("held", flush=True)
    time.sleep(120)
"""


def start_holder(path: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), *arguments], stdout=subprocess.PIPE, text=True
    )


def test_file_lock_reports_holder_and_waits(tmp_path: Path) -> None:
    path, told, order = tmp_path / "lock", list[str](), list[str]()

    def second() -> None:
        with file_lock(path, owner="second", waiting=told.append):
            order.append("second")

    with file_lock(path, owner="first", waiting=told.append):
        waiter = threading.Thread(target=second)
        waiter.start()
        deadline = time.monotonic() + 30
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
        order.append("first")
    waiter.join(30)
    assert order == ["first", "second"]
    assert told == ["first", ""]
    assert list(tmp_path.iterdir()) == []


def test_file_lock_is_free_once_its_holder_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with start_holder(path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        threading.Timer(0.5, holder.send_signal, [signal.SIGKILL]).start()
        told: list[str] = []
        with file_lock(path, waiting=told.append):
            assert holder.wait(timeout=30) == -signal.SIGKILL
    assert told == ["somebody", ""]
    assert not path.exists()


def test_file_lock_outlives_its_holder_in_a_child(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with start_holder(path, "child") as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        holder.wait()
        with pytest.raises(LockTimeoutError, match="somebody"), file_lock(path, patience=0.3):
            pytest.fail("the lock was taken")
        os.kill(child, signal.SIGKILL)
    with file_lock(path, patience=30):
        pass


def test_file_lock_lets_one_in_at_a_time(tmp_path: Path) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with file_lock(tmp_path / "lock"):
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


def test_file_lock_raises_in_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="File exists"), file_lock(tmp_path / "file" / "lock"):
        pytest.fail("the lock was taken")


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[int]:
    """The descriptor of a held lock file; closing it releases the lock."""
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield descriptor
    with suppress(OSError):
        os.close(descriptor)


def test_file_lock_reports_each_holder_once(
    tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder writes its name after it has taken the lock."""
    writes = iter(["", "one", "one", "two", "", None])
    flock = fcntl.flock

    def attempt(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX | fcntl.LOCK_NB:
            name = next(writes)
            if name is None:
                monkeypatch.setattr(fcntl, "flock", flock)
                os.close(taken)
            else:
                os.ftruncate(taken, 0)
                os.pwrite(taken, name.encode(), 0)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", attempt)
    told: list[str] = []
    with file_lock(tmp_path / "lock", waiting=told.append):
        assert told == ["one", "two", ""]


def test_file_lock_closes_the_file_when_waiting_is_interrupted(tmp_path: Path, taken: int) -> None:
    def interrupted(holder: str) -> None:
        raise KeyboardInterrupt

    os.pwrite(taken, b"somebody", 0)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(KeyboardInterrupt), file_lock(tmp_path / "lock", waiting=interrupted):
        pytest.fail("the lock was taken")
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("replaced", [False, True])
def test_file_lock_opens_again_what_was_moved_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """On NFS, the client renames a removed file that is still open."""
    path, flock, calls = tmp_path / "lock", fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            path.rename(tmp_path / "gone")
            if replaced:
                path.touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with file_lock(path, owner="me") as lock:
        assert path.read_text() == "me"
        assert os.fstat(*lock).st_ino == path.stat().st_ino


def test_file_lock_succeeds_without_file_system_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with file_lock(tmp_path / "lock") as first, file_lock(tmp_path / "lock") as second:
        assert (first, second) == ((), ())
    assert caplog.messages == ["this file system has no locks: [Errno 37] No locks available"] * 2
    assert list(tmp_path.iterdir()) == []


def test_file_lock_writes_owner_into_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    before = os.umask(0o022)
    try:
        with file_lock(path, owner="r" * 600) as (descriptor,):
            assert path.stat().st_mode & 0o777 == 0o644
            assert path.read_text() == "r" * 500
            assert not os.get_inheritable(descriptor)
            path.unlink()  # by a user, for example
    finally:
        os.umask(before)
