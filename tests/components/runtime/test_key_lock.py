import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from components.runtime.key_lock import held, this_process
from qat_lib.errors import StorageError

HOLDER = """
    import sys, time
    from pathlib import Path
    from components.runtime.key_lock import held
    with held(Path(sys.argv[1]), print):
        print("held", flush=True)
        time.sleep(120)
"""


def test_held_tells_the_holder_and_waits_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(StorageError, match="can't be written"), held(tmp_path / "file" / "key.lock", print):
        pass


def test_this_process_is_named_without_a_run() -> None:
    assert this_process().startswith(f"process {os.getpid()} on ")
