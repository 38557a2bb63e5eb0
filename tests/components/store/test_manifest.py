"""What a manifest says, and what is no manifest."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import StorageError
from qat_lib.support.digests import sha256_of_json
from qatline.components.store import manifest as module
from qatline.components.store.manifest import (
    FileEntry,
    Manifest,
    describe,
    read_step_manifest,
    verify_directory,
)


def content(**changed: Any) -> dict[str, Any]:
    """Return a small manifest's JSON, changed but resealed."""
    whole = Manifest(files={"a": FileEntry(sha256="0", size=1)}, step="s", key="k").to_dict()
    plain = {
        name: value
        for name, value in {**whole, **changed}.items()
        if name != "seal" and value is not None
    }
    return {**plain, "seal": sha256_of_json(plain)}


def test_manifest_of_nothing_has_plain_defaults(tmp_path: Path) -> None:
    assert describe(tmp_path) == Manifest(files={})
    empty = Manifest(files={})
    assert (empty.step, empty.key, empty.metrics, empty.settings, empty.seconds) == (
        "",
        "",
        {},
        {},
        0.0,
    )


def test_manifest_keeps_settings_and_file_meaning(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b").write_text("")
    made = describe(tmp_path, settings={"qat": {"epochs": 3}}, metrics={"a": 1.0})
    assert (made.settings, made.metrics) == ({"qat": {"epochs": 3}}, {"a": 1.0})
    assert [set(entry) for entry in made.to_dict()["files"].values()] == [
        {"sha256", "size", "meaning"},
        {"sha256", "size"},
    ]
    assert made.files["b"].size == 0
    assert Manifest.from_dict(made.to_dict()) == made


def test_manifest_reads_keys_in_any_order() -> None:
    made = content()
    assert Manifest.from_dict(dict(reversed(made.items()))) == Manifest.from_dict(made)
    del made["settings"]
    assert Manifest.from_dict(content(settings=None)).settings == {}


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"step": None}, "KeyError"),
        ({"version": None}, "KeyError"),
        ({"files": {"a": {"sha256": "0", "size": 1, "more": 2}}}, "TypeError"),
        ({"files": ["a"]}, "AttributeError"),
        ({"seconds": "soon"}, "ValueError"),
    ],
)
def test_manifest_that_is_incomplete_is_told(changed: dict[str, Any], what: str) -> None:
    with pytest.raises(StorageError, match=f"the manifest is incomplete: {what}"):
        Manifest.from_dict(content(**changed))


def test_read_manifest_tells_what_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(StorageError, match="expected a JSON object, received list"):
        read_step_manifest(tmp_path)


def publish(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text(name)
    (folder / "manifest.json").write_text(json.dumps(describe(folder).to_dict()))


def test_verify_names_first_added_file(tmp_path: Path) -> None:
    publish(tmp_path, "a")
    for name in ("c", "b"):
        (tmp_path / name).touch()
    with pytest.raises(StorageError, match="not whole: b was added"):
        verify_directory(tmp_path)


def test_verify_finds_a_file_that_grew(tmp_path: Path) -> None:
    publish(tmp_path, "a")
    (tmp_path / "a").write_text("aa")
    with pytest.raises(StorageError, match="a has 2 bytes, expected 1"):
        verify_directory(tmp_path, contents=False)


def fails(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_verify_tells_a_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, "a")
    monkeypatch.setattr(module, "_measure", fails)
    with pytest.raises(StorageError, match=r"not whole: a can't be read \(Input/output error\)"):
        verify_directory(tmp_path)


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to(".", target_is_directory=True)]
)
def test_describe_refuses_what_is_no_plain_file(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "odd")
    with pytest.raises(StorageError, match="odd is not a plain file"):
        describe(tmp_path)


def test_describe_reports_file_of_unreadable_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_text("{}")
    monkeypatch.setattr(module, "meaning_digest", fails)
    with pytest.raises(StorageError, match=r"a\.json can't be read: Input/output error"):
        describe(tmp_path)
