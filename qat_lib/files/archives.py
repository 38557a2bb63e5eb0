"""Open an untrusted zip archive after its sizes are checked.

The sizes in the directory bound what reading gives: Python's ``zipfile`` stops there and then
compares the checksum. (Of the compressions that it supports, only deflate is unpacked piece by
piece.)
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Collection
from typing import BinaryIO

from qat_lib.files import limits


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
    try:
        archive = zipfile.ZipFile(stream)
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error) as error:
        raise ValueError(f"it is no zip archive, or only a part of one ({error})") from error
    read = [each for each in archive.infolist() if wanted is None or each.filename in wanted]
    for member in read:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(
                f"its member {member.filename!r} is compressed otherwise than by deflate"
            )
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
            f"trust the file, allow more: {limits.UNPACKED_VARIABLE}={-(-asked >> 30)}GiB"
        )
