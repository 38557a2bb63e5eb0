"""Open an untrusted zip archive after a check of its sizes.

The sizes in the directory bound the unpacked data: Python's ``zipfile`` stops reading at the
declared size and then compares the checksum. Of the supported compressions, only deflate unpacks
incrementally.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable
from typing import BinaryIO

from qat_lib.files import limits


def open_archive(
    stream: BinaryIO, wanted: Callable[[str], bool] = lambda _: True
) -> zipfile.ZipFile:
    """Return the archive in ``stream`` after the size check.

    Args:
        stream: a seekable file.
        wanted: returns whether a member is read, given its name; only the sizes of these count.

    Raises:
        ValueError: the file is not a zip archive, is damaged, or unpacks to more than the limit;
            the message gives the reason.
        OSError: the file can't be read.
    """
    size = stream.seek(0, os.SEEK_END)
    try:
        archive = zipfile.ZipFile(stream)
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error) as error:
        raise ValueError(f"it is no zip archive, or only a part of one ({error})") from error
    read = [each for each in archive.infolist() if wanted(each.filename)]
    for member in read:
        # zipfile expands whole input chunks of bzip2 and LZMA, without an output limit.
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(
                f"its member {member.filename!r} is compressed otherwise than by deflate"
            )
    check_unpacked(sum(member.file_size for member in read), size)
    return archive


def check_unpacked(asked: int, file_size: int) -> None:
    """Check that a file of ``file_size`` bytes may unpack to ``asked`` bytes.

    Raises:
        ValueError: the size exceeds the limit.
    """
    allowed = limits.unpacked_bytes(file_size)
    if asked > allowed:
        raise ValueError(
            f"its {file_size:,} bytes unpack to {asked:,}, expected at most {allowed:,}. If you "
            f"trust the file, allow more: {limits.UNPACKED_VARIABLE}={-(-asked >> 30)}GiB"
        )
