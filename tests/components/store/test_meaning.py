import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from qatline.components.store.meaning import meaning_digest


def keras_archive(
    path: Path, *, saved: str, shared: int, other: int = 7, weights: bytes = b"w", **options: Any
) -> Path:
    numbers = {"a": shared, "b": shared, "c": other}
    layers = [{"name": name, "shared_object_id": number} for name, number in numbers.items()]
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "3", "date_saved": saved}))
        archive.writestr("config.json", json.dumps({"layers": layers}))
        archive.writestr(
            zipfile.ZipInfo("model.weights.h5", (2026, 1, 1, 0, 0, shared % 60)), weights
        )
    return path


def test_meaning_of_archive_ignores_dates_and_addresses(tmp_path: Path) -> None:
    first = keras_archive(tmp_path / "1.keras", saved="today", shared=140049632772880)
    again = keras_archive(tmp_path / "2.keras", saved="tomorrow", shared=139759326820496)
    assert first.read_bytes() != again.read_bytes()
    assert meaning_digest(first) == meaning_digest(again)


@pytest.mark.parametrize("change", [{"weights": b"W"}, {"other": 5}])
def test_meaning_of_an_archive_covers_weights_and_sharing(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    first = keras_archive(tmp_path / "1.keras", saved="today", shared=5)
    again = keras_archive(tmp_path / "2.keras", saved="today", shared=5, **change)
    assert meaning_digest(first) != meaning_digest(again)


def test_meaning_of_an_archive_covers_every_member(tmp_path: Path) -> None:
    path = keras_archive(tmp_path / "1.keras", saved="today", shared=5)
    before = meaning_digest(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("assets/more.txt", "more")
    assert meaning_digest(path) not in (before, None)


def test_meaning_of_an_odd_archive_is_its_content(tmp_path: Path) -> None:
    bomb = keras_archive(
        tmp_path / "bomb.keras",
        saved="",
        shared=1,
        weights=bytes(1 << 20),
        compression=zipfile.ZIP_DEFLATED,
    )
    twice = keras_archive(tmp_path / "twice.keras", saved="", shared=1)
    with zipfile.ZipFile(twice, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("config.json", "{}")
    (tmp_path / "damaged.keras").write_bytes(twice.read_bytes()[:-30])
    (tmp_path / "text.keras").write_text("no archive")
    for path in (bomb, twice, tmp_path / "damaged.keras", tmp_path / "text.keras"):
        assert meaning_digest(path) is None


def test_meaning_of_json_is_without_times(tmp_path: Path) -> None:
    def digest(content: str) -> str | None:
        path = tmp_path / "history.json"
        path.write_text(content)
        return meaning_digest(path)

    first = digest('[{"loss": 0.5, "seconds": 1.25}]')
    assert first == digest('[{"loss": 0.5, "seconds": 9}]')
    assert first != digest('[{"loss": 0.6, "seconds": 1.25}]')
    assert digest('{"a": {"created": "2026"}}') == digest('{"a": {"created": "2027"}}')
    assert digest('{"half": ') is None
    assert digest("[" * 100_000) is None


def test_meaning_of_other_files_is_their_content(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"x")
    assert meaning_digest(path) is None


def archive(path: Path, members: Mapping[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(zipfile.ZipInfo(name), content)
    return path


def test_meaning_of_an_archive_ignores_the_order(tmp_path: Path) -> None:
    first = archive(tmp_path / "1.keras", {"a.json": "1", "b": "2"})
    again = archive(tmp_path / "2.keras", {"b": "2", "a.json": "1"})
    assert meaning_digest(first) == meaning_digest(again) is not None
    assert meaning_digest(first) != meaning_digest(
        archive(tmp_path / "3.keras", {"a.json": "2", "b": "1"})
    )


def test_meaning_leaves_times_out_of_json_members_alone(tmp_path: Path) -> None:
    def digest(name: str, content: str) -> str | None:
        return meaning_digest(archive(tmp_path / "a.keras", {name: content}))

    assert digest("a.json", '{"seconds": 1}') == digest("a.json", '{"seconds": 2}')
    assert digest("a.bin", '{"seconds": 1}') != digest("a.bin", '{"seconds": 2}')
    assert digest("a.json", "no JSON") != digest("a.json", "none either")


def test_meaning_of_empty_archive_is_its_content(tmp_path: Path) -> None:
    assert meaning_digest(archive(tmp_path / "a.keras", {})) is None


def test_unreadable_archive_meaning_is_its_content(tmp_path: Path) -> None:
    content = bytearray(archive(tmp_path / "locked.keras", {"a": "1"}).read_bytes())
    content[content.index(b"PK\1\2") + 8] |= 1  # encrypted
    (tmp_path / "locked.keras").write_bytes(content)
    content[content.index(b"PK\1\2") + 6] = 99  # of version 9.9
    (tmp_path / "later.keras").write_bytes(content)
    assert meaning_digest(tmp_path / "locked.keras") is None
    assert meaning_digest(tmp_path / "later.keras") is None


def test_meaning_reads_up_to_ten_thousand_members(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.keras", {str(index): "" for index in range(10_000)})
    assert meaning_digest(path) is not None
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("more", "")
    assert meaning_digest(path) is None


def test_meaning_reads_json_up_to_16_mib(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"1".ljust(16 << 20))
    assert meaning_digest(path) is not None
    path.write_bytes(b"1".ljust((16 << 20) + 1))
    assert meaning_digest(path) is None
