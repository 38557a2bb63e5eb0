import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import StorageError
from qat_lib.files.whole_files import folder_beside
from qatline.components.store.directories import describe, publish
from qatline.components.store.step_store import StepStore, step_key, this_process

PARTS: dict[str, Any] = {
    "code": "c",
    "settings": {"data": {"limit": 10}},
    "seed": 1,
    "inputs": {"dataset": "d"},
    "files": {"data.path": "f"},
    "versions": {"numpy": "2"},
    "machine": None,
}


def test_key_depends_exactly_on_its_parts() -> None:
    key = step_key("s", **PARTS)
    assert key == step_key("s", **dict(reversed(PARTS.items())))
    assert len(key) == 64
    changes = {
        "code": "C",
        "settings": {"data": {"limit": 11}},
        "seed": 2,
        "inputs": {"dataset": "D"},
        "files": {},
        "versions": {"numpy": "3"},
        "machine": "m",
    }
    keys = {step_key("s", **{**PARTS, name: value}) for name, value in changes.items()} | {
        step_key("t", **PARTS)
    }
    assert len(keys) == len(changes) + 1
    assert key not in keys


def put(store: StepStore, text: str = "x") -> Path:
    final = store.path("s", "k")
    with folder_beside(final) as work:
        (work / "a").write_text(text)
        publish(work, final, describe(work, step="s", key="k", metrics={"n": 1.0}))
    return final


def test_what_was_put_is_found(tmp_path: Path) -> None:
    store = StepStore(tmp_path)
    assert store.find("s", "k") is None
    put(store)
    found = store.find("s", "k")
    assert found is not None
    assert found.metrics == {"n": 1.0}


def test_damaged_entry_is_missing_and_replaceable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = StepStore(tmp_path)
    (put(store) / "a").write_text("y")
    assert store.find("s", "k") is None
    assert "damaged" in caplog.text
    put(store, "z")
    assert store.find("s", "k") is not None


def test_entry_under_wrong_name_is_missing(tmp_path: Path) -> None:
    store = StepStore(tmp_path)
    put(store).rename(tmp_path / "s" / "other")
    assert store.find("s", "other") is None


def test_the_store_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert StepStore.from_environment() is None
    monkeypatch.setenv("QATLINE_STORE", str(tmp_path))
    store = StepStore.from_environment()
    assert store is not None
    assert store.root == tmp_path


def test_step_key_is_stable_across_releases() -> None:
    """Another key for equal parts would recompute everything for every user."""
    assert (
        step_key("s", **PARTS) == "1b6ab24fd6612ebe3506027e5de12f56caac2a28f97b12b05dbbcdff76e22789"
    )


def test_step_key_ignores_order_of_settings() -> None:
    first, second = (
        {**PARTS, "settings": dict(items)} for items in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)])
    )
    assert step_key("s", **first) == step_key("s", **second)


def test_step_key_refuses_non_json_numbers() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        step_key("s", **{**PARTS, "settings": {"a": float("nan")}})


def test_hold_reports_the_run_that_has_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QATLINE_RUN", "20260101-a")
    store, told = StepStore(tmp_path), list[str]()

    def wait() -> None:
        with store.hold("s", "k", told.append):
            pass

    waiter = threading.Thread(target=wait)
    with store.hold("s", "k", pytest.fail):
        assert [path.name for path in (tmp_path / "s").iterdir()] == [".k.lock"]
        waiter.start()
        deadline = time.monotonic() + 30
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
    waiter.join(30)
    assert told == [f"run 20260101-a (process {os.getpid()} on {os.uname().nodename})", ""]
    assert list((tmp_path / "s").iterdir()) == []


def test_hold_reports_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    with (
        pytest.raises(StorageError, match="can't be written"),
        StepStore(tmp_path).hold("s", "k", pytest.fail),
    ):
        pytest.fail("the lock was taken")


def test_this_process_is_named_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QATLINE_RUN", raising=False)
    assert this_process().startswith(f"process {os.getpid()} on ")
