"""Limits on files, and the environment variables that raise them.

A small file can ask for any amount of memory: it names sizes, or it is compressed. What it asks for
is read from its headers and compared with these limits before anything is decoded.
"""

from __future__ import annotations

import os
import re

from qat_lib.errors import ConfigError

UNPACKED_VARIABLE = "QATLINE_MAX_UNPACKED"
PIXELS_VARIABLE = "QATLINE_MAX_IMAGE_PIXELS"

UNPACKED_FLOOR = 256 << 20
"""Bytes that any archive may unpack to."""

UNPACKED_RATIO = 16
"""How many times its own size an archive may unpack to, if that is more than
``UNPACKED_FLOOR``."""

IMAGE_PIXELS = 50_000_000
"""Pixels of one image: a camera of 50 megapixels."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def unpacked_bytes(file_size: int) -> int:
    """Return how many bytes an archive of ``file_size`` bytes may unpack to.

    The variable ``QATLINE_MAX_UNPACKED`` sets another limit, such as ``20GiB``.

    Raises:
        ConfigError: the variable holds no size.
    """
    allowed = _from_environment(UNPACKED_VARIABLE)
    return max(UNPACKED_FLOOR, UNPACKED_RATIO * file_size) if allowed is None else allowed


def image_pixels() -> int:
    """Return how many pixels an image may have; ``QATLINE_MAX_IMAGE_PIXELS`` sets another limit.

    Raises:
        ConfigError: the variable holds no number.
    """
    allowed = _from_environment(PIXELS_VARIABLE)
    return IMAGE_PIXELS if allowed is None else allowed


def _from_environment(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,18})\s*(?:([KMGT])i?B?|B)?", text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise ConfigError(
            f"{variable}: expected a whole number such as 2000000 or 4GiB. Received: {text!r}."
        )
    return int(match[1]) * _UNITS[(match[2] or "").upper()]
