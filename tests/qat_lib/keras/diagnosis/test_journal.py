"""Results that outlive a killed process, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import keras
import numpy as np
import pytest

from qat_lib.errors import ConfigError
from qat_lib.keras.diagnosis.journal import Journal, fingerprint_of


def never() -> NoReturn:
    raise AssertionError("computed again")


def test_result_is_computed_once_and_kept_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "j"
    assert Journal(path, "a").result("x", lambda: 1.5) == 1.5
    again = Journal(path, "a")
    assert again.knows("x")
    assert again.result("x", never) == 1.5
    assert not again.knows("y")


def test_nothing_is_written_before_the_first_result(tmp_path: Path) -> None:
    Journal(tmp_path / "j", "a")
    assert list(tmp_path.iterdir()) == []


def test_results_of_something_else_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "j"
    Journal(path, "a").result("x", lambda: 1)
    other = Journal(path, "b")
    assert other.result("x", lambda: 2) == 2
    assert not Journal(path, "a").knows("x")
    assert Journal(path, "b").result("x", never) == 2


@pytest.mark.parametrize(
    "end", ['{"key": "y", "val', '{"key": "y"}', "[1]", "\x00\xff", "[" * 9999]
)
def test_a_damaged_line_ends_what_is_taken_over(tmp_path: Path, end: str) -> None:
    path = tmp_path / "j"
    Journal(path, "a").result("x", lambda: 1)
    path.write_text(path.read_text() + end)
    journal = Journal(path, "a")
    assert journal.result("x", never) == 1
    journal.result("z", lambda: 3)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("key") for line in lines] == [None, "x", "z"]


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


def test_fingerprint_follows_weights_data_and_settings() -> None:
    model = keras.Sequential([keras.Input((2,), name="x"), keras.layers.Dense(1, name="d")])
    data = np.ones((3, 2), np.float32)
    first = fingerprint_of(model, [data], {"a": 1})
    assert fingerprint_of(model, [data.copy()], {"a": 1}) == first
    assert fingerprint_of(model, [data], {"a": 2}) != first
    assert fingerprint_of(model, [data * 2], {"a": 1}) != first
    model.set_weights([weight + 1 for weight in model.get_weights()])
    assert fingerprint_of(model, [data], {"a": 1}) != first
