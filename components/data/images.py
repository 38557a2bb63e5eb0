"""Decode one image file with Pillow: the only decoder, so that training and engine see the same pixels."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qat_lib.errors import DataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_MODES = {"rgb": "RGB", "gray": "L"}
Pixels = npt.NDArray[np.uint8]


def load_image(path: Path, color: str, size: tuple[int, int] | None) -> Pixels:
    """Read one image as uint8 ``(height, width, channels)``; see ``decode_image``.

    Raises:
        DataError: the file can't be read or is no whole image; the message names it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"the image {path} can't be read: {error.strerror}") from error
    return decode_image(data, color, size, name=str(path))


def decode_image(data: bytes, color: str, size: tuple[int, int] | None, *, name: str) -> Pixels:
    """Decode, turn upright (EXIF), convert and resize one image.

    Args:
        data: content of the file.
        color: ``rgb`` (3 channels) or ``gray`` (1 channel).
        size: ``(height, width)`` to resize to, bilinear and antialiased; None keeps the image's own.
        name: the file, for the message.

    Raises:
        DataError: it is broken, cut short, of 16 or 32 bits a channel, or implausibly large.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data)) as opened:
            opened.load()
            if opened.mode.startswith(("I", "F")):
                raise DataError(f"the image {name} has mode {opened.mode}; expected 8 bits a channel: convert it first")
            image: Any = ImageOps.exif_transpose(opened)
            if "transparency" in image.info:
                image = image.convert("RGBA")
            image = image.convert(_MODES[color])
            if size is not None and image.size != (size[1], size[0]):
                image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            pixels = np.asarray(image, np.uint8)
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever broken bytes lead them to.
        raise DataError(
            f"the image {name} is broken: {error}. Repair or remove it, or set data.skip_broken=true."
        ) from error
    return pixels[..., None] if pixels.ndim == 2 else pixels


def resize_array(batch: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[Any]:
    """Resize ``(batch, height, width, channels)`` of uint8 or float32, bilinear and antialiased, channel by channel."""
    from PIL import Image

    height, width = size
    out = np.empty((len(batch), height, width, batch.shape[-1]), batch.dtype)
    for index, image in enumerate(batch):
        for channel in range(batch.shape[-1]):
            plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
            out[index, ..., channel] = np.asarray(plane.resize((width, height), Image.Resampling.BILINEAR))
    return out
