"""Open an untrusted zip archive after its directory is checked and bounded.

The sizes in the directory bound what reading gives: Python's ``zipfile`` stops there and then
compares the checksum. (Of the compressions it knows, only deflate is unpacked piece by piece.)
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections import Counter
from collections.abc import Collection
from typing import BinaryIO

from qat_lib.files import limits

MAX_DIRECTORY_BYTES = 4 << 20
"""Longest directory: some 50,000 members."""

_END, _END64, _LOCATOR = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_LONGEST_COMMENT = 65_535
_ENCRYPTED = 1


def open_archive(stream: BinaryIO, wanted: Collection[str] | None = None) -> zipfile.ZipFile:
    """Return the archive in ``stream``, whose members may be read.

    Args:
        stream: a seekable file.
        wanted: names of the members that will be read, whose sizes are added up; None for all.

    Raises:
        ValueError: it is no zip archive, is damaged, or asks for more than is allowed; the text
            says why.
        OSError: the file can't be read.
    """
    size = stream.seek(0, os.SEEK_END)
    _check_directory_size(stream, size)
    try:
        archive = zipfile.ZipFile(stream)
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error) as error:
        raise ValueError(f"it is no zip archive, or only a part of one ({error})") from error
    members = archive.infolist()
    _check_names(members)
    read = (
        members if wanted is None else [member for member in members if member.filename in wanted]
    )
    for member in read:
        _check_member(member)
    if sum(member.compress_size for member in members) > size:
        raise ValueError("its members overlap, as those of a zip bomb do")
    check_unpacked(sum(member.file_size for member in read), size)
    return archive


def check_unpacked(asked: int, file_size: int) -> None:
    """Check that a file of ``file_size`` bytes may unpack to ``asked`` bytes.

    Raises:
        ValueError: it may not.
    """
    allowed = limits.unpacked_bytes(file_size)
    if asked > allowed:
        raise ValueError(
            f"its {file_size:,} bytes unpack to {asked:,}, expected at most {allowed:,}. If you "
            "trust the file, "
            f"allow more: {limits.UNPACKED_VARIABLE}={-(-asked >> 30)}GiB"
        )


def _check_directory_size(stream: BinaryIO, size: int) -> None:
    """Check the zip directory's size before Python reads it whole."""
    start = max(0, size - _LONGEST_COMMENT - 22)
    stream.seek(start)
    tail = stream.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + 22:
        raise ValueError("it is no zip archive, or only a part of one")
    (length,) = struct.unpack("<I", tail[at + 12 : at + 16])
    if at >= 20 and tail[at - 20 : at - 16] == _LOCATOR:
        (where,) = struct.unpack("<Q", tail[at - 12 : at - 4])
        stream.seek(min(where, size))
        record = stream.read(56)
        if len(record) < 56 or record[:4] != _END64:
            raise ValueError("it is no zip archive, or only a part of one")
        (length,) = struct.unpack("<Q", record[40:48])
    if length > MAX_DIRECTORY_BYTES:
        raise ValueError(
            f"its directory has {length:,} bytes, expected at most {MAX_DIRECTORY_BYTES:,}"
        )


def _check_names(members: list[zipfile.ZipInfo]) -> None:
    name, times = (
        Counter(member.filename for member in members).most_common(1)[0] if members else ("", 0)
    )
    if times > 1:
        raise ValueError(f"it holds {times} members named {name!r}, expected each name once")
    for member in members:
        if member.filename.startswith("/") or ".." in member.filename.replace("\\", "/").split("/"):
            raise ValueError(f"the name of its member {member.filename!r} leads out of it")


def _check_member(member: zipfile.ZipInfo) -> None:
    if member.flag_bits & _ENCRYPTED:
        raise ValueError(f"its member {member.filename!r} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its member {member.filename!r} is compressed otherwise than by deflate")
