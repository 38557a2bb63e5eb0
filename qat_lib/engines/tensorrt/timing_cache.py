"""TensorRT's timing cache on disk: read before a build, merged with what others wrote meanwhile, written whole."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from qat_lib.engines import files

logger = logging.getLogger(__name__)


def attach(config: Any, path: Path | None) -> None:
    """Give the build configuration a timing cache, from ``path`` where that holds one for this device."""
    if path is None:
        return
    cache = _read(config, path)
    if cache is None or not config.set_timing_cache(cache, False):
        logger.warning("the timing cache %s is of another TensorRT or GPU, or damaged; it is started anew", path)
        config.set_timing_cache(config.create_timing_cache(b""), False)


def save(config: Any, path: Path | None) -> None:
    """Merge the build's timings into ``path``. Two builders that end together both find theirs in it.

    Raises:
        EngineBuildError: it can't be written; the old file is kept.
    """
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.writing(path.parent), files.locked(path.parent, exclusive=True):
        timings = config.get_timing_cache()
        others = _read(config, path)
        if others is not None and not timings.combine(others, False):
            logger.warning("the timing cache %s does not fit this build and is replaced", path)
        temporary = files.write_beside(path, bytes(timings.serialize()))
        os.replace(temporary, path)


def _read(config: Any, path: Path) -> Any:
    """Return the cache in ``path``; an empty one if there is no file, None if TensorRT does not take it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    return config.create_timing_cache(data)
