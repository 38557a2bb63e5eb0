"""Where a result may be written, checked before the work."""

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
    """Refuse an output path at which a file must not be put.

    A result is written beside its place and renamed, which would replace a device or a FIFO as it
    does a file.

    Args:
        path: path of the file to write; it may be there already, as a regular file.
        inputs: files that the result is made from; none of them may be overwritten.

    Raises:
        ConfigError: something other than a regular file has that name, or it is one of the inputs.
    """
    place = Path(path)
    try:
        found = place.stat()
    # Whoever writes says what is wrong with the folder.
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
        if Path(source).exists() and os.path.samefile(place, source):
            raise ConfigError(
                f"Expected an output other than the inputs. Received: {path} for both; choose "
                "another name."
            )
