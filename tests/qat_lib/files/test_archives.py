"""Zip archives that ask for too much, or lie."""

import io
import struct
import zipfile
from collections.abc import Callable

import pytest

from qat_lib.files.archives import open_archive


def archive(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b"", "no zip archive, or only a part"),
        (lambda: b"hello" * 100, "no zip archive, or only a part"),
        (lambda: archive({"a": b"1"})[:-30], "no zip archive, or only a part"),
        (lambda: archive({"a": b"1"}, zipfile.ZIP_BZIP2), "compressed otherwise than by deflate"),
        (lambda: archive({"a": b"1"}, zipfile.ZIP_LZMA), "compressed otherwise than by deflate"),
        (
            lambda: archive({"a": bytes(3 << 20)}, zipfile.ZIP_DEFLATED),
            r"unpack to 3,145,728, expected at most 2,097,152.*QATLINE_MAX_UNPACKED=1GiB",
        ),
    ],
)
def test_open_archive_refuses(
    make: Callable[[], bytes], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QATLINE_MAX_UNPACKED", "2MiB")
    with pytest.raises(ValueError, match=message):
        open_archive(io.BytesIO(make()))


def test_open_archive_counts_requested_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QATLINE_MAX_UNPACKED", "2MiB")
    data = archive({"a": bytes(3 << 20), "b": b"1"}, zipfile.ZIP_DEFLATED)
    with open_archive(io.BytesIO(data), "b".__eq__) as found:
        assert found.read("b") == b"1"


def test_declared_size_bounds_what_is_read() -> None:
    data = bytearray(archive({"a": bytes(1 << 20)}, zipfile.ZIP_DEFLATED))
    entry = data.index(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = struct.pack("<I", 10)
    found = open_archive(io.BytesIO(bytes(data)))
    with found.open("a") as member, pytest.raises(zipfile.BadZipFile, match="Bad CRC-32"):
        member.read()
