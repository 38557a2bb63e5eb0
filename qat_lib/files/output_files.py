"""Check output paths before the work starts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from qat_lib.errors import ConfigError
from qat_lib.files.regular_files import describe_kind


def check_output(
    path: str | os.PathLike[str], *, inputs: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Reject an output path that must not be overwritten.

    A result is written to a temporary neighbour and renamed; the rename would also replace a
    device or a FIFO.

    Args:
        path: path of the file to write; an existing regular file is allowed.
        inputs: source files of the result, protected against overwriting.

    Raises:
        ConfigError: the path is not a regular file, or is one of the inputs.
    """
    place = Path(path)
    try:
        found = place.stat()
    # The writer reports problems of the folder with a better message.
    except (FileNotFoundError, NotADirectoryError):
        return
    # A loop of links, a folder that can't be searched, a NUL in the name.
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Expected a path to write a file to. Received: {str(path)!r} ({error})."
        ) from error
    if not stat.S_ISREG(found.st_mode):
        kind = describe_kind(found.st_mode)
        raise ConfigError(
            f"Expected the path of a file to write. Received: {path}, which is {kind}."
        )
    for source in inputs:
        # samefile compares inodes: links and relative paths of the same file are equal.
        if Path(source).exists() and os.path.samefile(place, source):
            raise ConfigError(
                f"Expected an output other than the inputs. Received: {path} for both; choose "
                "another name."
            )
