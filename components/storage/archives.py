"""Safe extraction of archives into a folder.

Archives are untrusted. Members must have names below the folder: no absolute names, no ``..``, no
links. The extracted size is limited by ``qat_lib.files.limits``.
"""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from qat_lib.errors import DataError, QatlineError
from qat_lib.files.archives import check_unpacked, open_archive
from qat_lib.files.regular_files import open_regular
from qatline.components.storage.stored_file import ARCHIVES
from qatline.components.support.disk_errors import as_storage_error, is_disk_full

Wanted = Callable[[str], bool]

# RuntimeError: a member is encrypted or uses an unknown compression (NotImplementedError).
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    RuntimeError,
)


def unpack_files(archive: Path, folder: Path, wanted: Wanted) -> int:
    """Extract the requested files of an archive into an existing empty folder.

    Args:
        archive: a .tar, .tar.gz, .tgz or .zip file.
        folder: the folder.
        wanted: returns whether to extract a file, given its name.

    Returns:
        The number of extracted files.

    Raises:
        DataError: the archive is damaged, contains an unsafe name, a link or a duplicate, or
            exceeds the size limit.
        StorageError: the disk is full.
    """
    unpack_members = _unpack_zip if archive.name.lower().endswith(".zip") else _unpack_tar
    try:
        with open_regular(archive) as stream:
            return unpack_members(stream, folder, wanted)
    except QatlineError:
        raise
    except _DAMAGE as error:
        raise DataError(
            f"{archive.name} can't be unpacked: expected a whole archive "
            f"({', '.join(ARCHIVES)}) of files and folders, but {error or type(error).__name__}. "
            "Make or copy it again."
        ) from error
    except OSError as error:
        if is_disk_full(error):
            raise as_storage_error(error, folder) from error
        reason = error.strerror or error
        raise DataError(f"{archive.name} can't be unpacked: {reason}") from error


def safe_name(name: str) -> PurePosixPath:
    """Return a relative name as a path below a folder.

    Raises:
        ValueError: it is empty or leads out of the folder.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or not path.parts:
        raise ValueError(f"the name {name!r} leads out of its folder")
    return path


def _unpack_zip(stream: BinaryIO, folder: Path, wanted: Wanted) -> int:
    count = 0
    with open_archive(stream) as archive:
        for member in archive.infolist():
            mode = member.external_attr >> 16
            if stat.S_ISLNK(mode):
                raise ValueError(f"its member {member.filename!r} is a link")
            name = safe_name(member.filename)
            if not member.is_dir() and wanted(member.filename):
                with archive.open(member) as source:
                    _write(source, folder / name)
                count += 1
    return count


def _unpack_tar(stream: BinaryIO, folder: Path, wanted: Wanted) -> int:
    count = 0
    size = os.fstat(stream.fileno()).st_size
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    source: Any = gzip.GzipFile(fileobj=stream) if packed else stream
    bounded: Any = _Bounded(source, size)
    with tarfile.open(fileobj=bounded, mode="r|", tarinfo=_Member) as archive:
        for member in archive:
            name = safe_name(member.name) if member.name not in (".", "./") else None
            if member.isdir():
                continue
            if not member.isreg() or member.issparse() or name is None:
                raise ValueError(f"its member {member.name!r} is a link or no plain file")
            if wanted(member.name):
                content = archive.extractfile(member)
                if content is not None:
                    _write(content, folder / name)
                    count += 1
    # tarfile stops at the end mark; reading on makes gzip verify its checksum.
    while bounded.read(1 << 20):
        pass
    return count


class _Member(tarfile.TarInfo):
    """A member with a complete header.

    ``tarfile`` treats a damaged or missing header as the end of the archive, although only an empty
    block is an end mark.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        """Return the member described by a header.

        Raises:
            HeaderError: the block is the end mark.
            ReadError: the block is neither the end mark nor a header.
        """
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if bytes(buf) == bytes(tarfile.BLOCKSIZE):
                raise
            reason = (
                f"the header of a member is damaged ({error})" if buf else "its end mark is missing"
            )
            raise tarfile.ReadError(reason) from error


class _Bounded:
    """A stream with a limit on its unpacked size, relative to the size of the file."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self._size = size
        self._read = 0

    def read(self, count: int) -> bytes:
        """Return the next bytes."""
        content = self._stream.read(count)
        self._read += len(content)
        check_unpacked(self._read, self._size)
        return content


def _write(source: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Mode x: a second member of the same name must not replace the first.
        with target.open("xb") as stream:
            shutil.copyfileobj(source, stream, 1 << 20)
    except FileExistsError as error:
        raise ValueError(f"it holds two members named {target.name!r}") from error
