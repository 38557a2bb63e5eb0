"""Limits on files, and the environment variables that raise them.

A small file can request any amount of memory through declared sizes or compression. The request is
read from the headers and compared with these limits before decoding.
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
"""Largest ratio of unpacked to stored size above ``UNPACKED_FLOOR``."""

IMAGE_PIXELS = 50_000_000
"""Pixels of one image: a camera of 50 megapixels."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def unpacked_bytes(file_size: int) -> int:
    """Return the largest unpacked size of an archive of ``file_size`` bytes.

    The variable ``QATLINE_MAX_UNPACKED`` overrides the limit, for example with ``20GiB``.

    Raises:
        ConfigError: the value of the variable is not a size.
    """
    allowed = _from_environment(UNPACKED_VARIABLE)
    return max(UNPACKED_FLOOR, UNPACKED_RATIO * file_size) if allowed is None else allowed


def image_pixels() -> int:
    """Return the largest number of pixels of an image.

    The variable ``QATLINE_MAX_IMAGE_PIXELS`` overrides the limit.

    Raises:
        ConfigError: the value of the variable is not a number.
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
