"""TensorRT's timing cache on disk: read before a build, merged after."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from qat_lib.engines import files
from qat_lib.errors import EngineBuildError
from qat_lib.files.whole_files import written_beside

logger = logging.getLogger(__name__)


def attach(config: Any, path: Path | None) -> None:
    """Set the timing cache of a build, from ``path`` if it was written for this device."""
    if path is None:
        return
    cache = _read(config, path)
    if cache is None or not config.set_timing_cache(cache, False):
        logger.warning(
            "the timing cache %s is of another TensorRT or GPU, or damaged; it is started anew",
            path,
        )
        config.set_timing_cache(config.create_timing_cache(b""), False)


def save(config: Any, path: Path | None) -> None:
    """Merge the timings of a build into ``path``, without loss of concurrent builds' timings.

    Raises:
        EngineBuildError: the file can't be written; the old file is kept.
    """
    if path is None:
        return
    with files.writing(path.parent), files.locked(path):
        timings = config.get_timing_cache()
        # Read again under the lock: another build may have written since attach(). The cache of a
        # build accepts no timings; a cache that was read does.
        merged = _read(config, path)
        if merged is not None and merged.combine(timings, False):
            timings = merged
        else:
            logger.warning("the timing cache %s does not fit this build and is replaced", path)
        with written_beside(path) as draft:
            draft.write_bytes(bytes(timings.serialize()))


def _read(config: Any, path: Path) -> Any:
    """Return the timing cache in ``path``, empty without a file, or None if TensorRT rejects it.

    Raises:
        EngineBuildError: the file can't be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise EngineBuildError(
            f"The timing cache {path} can't be read: {error.strerror or error}. "
            "Name a file that can be read and written."
        ) from error
    return config.create_timing_cache(data)
