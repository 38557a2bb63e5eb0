from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from qat_lib.errors import ConfigError
from qat_lib.files.journal import Journal, fingerprint


def never() -> NoReturn:
    raise AssertionError("computed again")


def test_result_is_computed_once_and_kept_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "j"
    assert Journal(path, "a").result("x", lambda: 1.5) == 1.5
    again = Journal(path, "a")
    assert again.knows("x")
    assert len(again) == 1
    assert again.result("x", never) == 1.5
    assert not again.knows("y")


def test_result_may_contain_arrays(tmp_path: Path) -> None:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    Journal(tmp_path / "j", "a").result("x", lambda: (weights, 0.5))
    found, error = Journal(tmp_path / "j", "a").result("x", never)
    np.testing.assert_array_equal(found, weights, strict=True)
    assert error == 0.5


def test_nothing_is_written_before_the_first_result(tmp_path: Path) -> None:
    Journal(tmp_path / "j", "a")
    assert list(tmp_path.iterdir()) == []


def test_results_of_another_computation_are_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "j"
    Journal(path, "a").result("x", lambda: 1)
    assert caplog.text == ""
    other = Journal(path, "b")
    assert "is of another model, other data or other settings" in caplog.text
    assert other.result("x", lambda: 2) == 2
    assert not Journal(path, "a").knows("x")
    assert Journal(path, "b").result("x", never) == 2


@pytest.mark.parametrize("content", [b"", b"my notes", b"PK\x03\x04 cut short"])
def test_journal_refuses_and_keeps_another_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"can't be read.*remove it to start over"):
        Journal(path, "a")
    assert path.read_bytes() == content


def test_failed_write_keeps_the_earlier_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j"
    journal = Journal(path, "a")
    journal.result("x", lambda: 1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="can't be written: No space left"):
        journal.result("y", lambda: 2)
    again = Journal(path, "a")
    assert (again.knows("x"), again.knows("y")) == (True, False)
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, signal, sys
from pathlib import Path
from qat_lib.files.journal import Journal
journal = Journal(Path(sys.argv[1]), "a")
for number in range(3):
    journal.result(str(number), lambda: [number] * 1000)
def killed(descriptor):
    os.kill(os.getpid(), signal.SIGKILL)
os.fsync = killed
journal.result("3", lambda: 0)
"""


def test_killed_write_keeps_the_earlier_results(tmp_path: Path) -> None:
    path = tmp_path / "j"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    journal = Journal(path, "a")
    assert [journal.result(str(number), never)[0] for number in range(3)] == [0, 1, 2]
    assert not journal.knows("3")


def test_remove_deletes_the_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", "a")
    journal.result("x", lambda: 1)
    journal.remove()
    assert list(tmp_path.iterdir()) == []
    journal.remove()


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a folder"):
        Journal(tmp_path, "a")
    journal = Journal(tmp_path / "no" / "j", "a")
    with pytest.raises(ConfigError, match="can't be written"):
        journal.result("x", lambda: 1)


def test_fingerprint_follows_settings_values_types_and_shapes() -> None:
    data = np.ones((3, 2), np.float32)
    first = fingerprint({"a": 1, "b": 2}, [data])
    assert first == fingerprint(json.loads('{"b": 2, "a": 1}'), [data.copy()])
    others = [data * 2, data.T, data.view(np.int32), data[:2]]
    changed = {fingerprint({"a": 1, "b": 2}, [other]) for other in others}
    changed |= {fingerprint({"a": 2, "b": 2}, [data]), fingerprint({"a": 1, "b": 2}, [data, data])}
    assert len(changed - {first}) == 6
