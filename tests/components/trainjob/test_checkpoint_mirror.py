"""Checkpoints in a storage, beside a training that is ended at any moment."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qat_lib.errors import StorageError
from qat_lib.files.whole_files import write_text
from qatline.components.storage.storage import LocalStorage, Storage
from qatline.components.storage.stored_file import StoredFile
from qatline.components.trainjob.checkpoint_mirror import mirrored_checkpoints

NAME = "train_baseline/key/baseline.state"


class Interrupted(Exception):  # noqa: N818
    """What ends a training."""


def write(folder: Path, text: str) -> None:
    (folder / NAME).parent.mkdir(parents=True, exist_ok=True)
    write_text(folder / NAME, text)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def interrupt(folder: Path, store: Path, text: str, storage: Storage | None = None) -> str:
    """Begin with what is stored, write a checkpoint, and end at once."""
    found = ""

    def train() -> None:
        nonlocal found
        with mirrored_checkpoints(folder, str(store), storage=storage):
            if (folder / NAME).exists():
                found = (folder / NAME).read_text()
            write(folder, text)
            raise Interrupted

    with pytest.raises(Interrupted):
        train()
    return found


def test_a_checkpoint_is_there_for_the_next_attempt(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert interrupt(tmp_path / "1" / "c", store, "epoch 1") == ""
    assert interrupt(tmp_path / "2" / "c", store, "epoch 2") == "epoch 1"
    assert interrupt(tmp_path / "3" / "c", store, "epoch 3") == "epoch 2"


def test_a_checkpoint_is_stored_while_training_goes_on(tmp_path: Path) -> None:
    stored, folder = tmp_path / "store" / NAME, tmp_path / "c"
    with mirrored_checkpoints(folder, str(tmp_path / "store"), pause=0.02):
        for text in ("epoch 1", "epoch 2"):
            write(folder, text)
            until(lambda text=text: stored.exists() and stored.read_text() == text)  # type: ignore[misc]


def test_nothing_is_left_after_success(tmp_path: Path) -> None:
    store = tmp_path / "store"
    interrupt(tmp_path / "1" / "c", store, "epoch 1")
    assert (store / NAME).exists()
    with mirrored_checkpoints(tmp_path / "2" / "c", str(store)):
        pass
    assert not (store / NAME).exists()


def test_only_what_changed_is_stored(tmp_path: Path) -> None:
    class Counting(LocalStorage):
        puts = 0

        def put(self, source: Path, location: str) -> StoredFile:
            Counting.puts += 1
            return super().put(source, location)

    folder, store = tmp_path / "c", tmp_path / "store"

    def stay() -> None:
        with mirrored_checkpoints(folder, str(store), storage=Counting(), pause=0.01):
            write(folder, "epoch 1")
            (folder / ".baseline.state.0123456789ab.tmp").write_text("half")
            until(lambda: Counting.puts > 0)
            time.sleep(0.2)
            raise Interrupted

    with pytest.raises(Interrupted):
        stay()
    assert Counting.puts == 1
    assert [path.name for path in store.rglob("*") if path.is_file()] == ["baseline.state"]


def test_a_file_that_is_replaced_meanwhile_is_stored_whole(tmp_path: Path) -> None:
    folder, store = tmp_path / "c", tmp_path / "store"

    class Slow(LocalStorage):
        """Reads the file in two parts, between which the training writes the next one."""

        def put(self, source: Path, location: str) -> StoredFile:
            first = source.read_bytes()[:4]
            write(folder, "b" * 8)
            (tmp_path / "whole").write_bytes(first + source.read_bytes()[4:])
            return super().put(tmp_path / "whole", location)

    interrupt(folder, store, "a" * 8, Slow())
    assert (store / NAME).read_text() == "a" * 8


def test_a_store_that_fails_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(LocalStorage):
        def list(self, location: str) -> list[StoredFile]:
            raise StorageError("away")

        def put(self, source: Path, location: str) -> StoredFile:
            raise StorageError("full")

    caplog.set_level(logging.INFO)
    storage = Broken()
    interrupt(tmp_path / "c", Path("s"), "epoch 1", storage)
    with mirrored_checkpoints(tmp_path / "d", "s", storage=storage):
        pass
    assert caplog.messages == [
        "earlier checkpoints can't be fetched, training starts over: away",
        f"the checkpoint {NAME} can't be stored: full",
        "earlier checkpoints can't be fetched, training starts over: away",
        "checkpoints are left in s/: away",
    ]


def test_a_name_that_leads_out_of_the_folder_is_not_fetched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Hostile(LocalStorage):
        def list(self, location: str) -> list[StoredFile]:
            return [StoredFile(location=f"{location}../../outside", size=1, tag="1")]

        def get(self, location: str, target: Path) -> StoredFile:
            raise AssertionError(target)

        def remove(self, location: str) -> None:
            return None

    with mirrored_checkpoints(tmp_path / "c", str(tmp_path / "store"), storage=Hostile()):
        pass
    assert "leads out of its folder" in caplog.text
