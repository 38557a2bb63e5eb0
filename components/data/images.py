"""Decoder of image files, based on Pillow.

It defines the pixels of an image, so that training and engine receive the same ones. Other decoders
may read the files of ``is_plain_jpeg``.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qat_lib.errors import DataError
from qat_lib.files import limits
from qat_lib.files.regular_files import read_regular

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
Pixels = npt.NDArray[np.uint8]

# Formats of the suffixes. Pillow would detect further ones by content, such as EPS (Ghostscript).
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_MODES = {"rgb": "RGB", "gray": "L"}
# EXIF tag, and its first value for images that are stored turned by 90 degrees.
_ORIENTATION, _FIRST_TURNED = 0x0112, 5

# Markers of JPEG: frames coded by Huffman, tables before them, and segments of applications.
_FRAMES, _TABLES = (0xC0, 0xC1, 0xC2), (0xC4, 0xDB, 0xDD)
_APP0, _APP1, _APP14 = 0xE0, 0xE1, 0xEE

# Images are decoded in many threads, but large ones, of hundreds of megabytes, one at a time.
_LARGE_PIXELS = 4_000_000
_LARGE_BYTES = 4 * _LARGE_PIXELS
# Reentrant: ``room_for_file`` and ``decode_image`` both acquire it in one thread.
_one_large_image = threading.RLock()


def load_image(path: Path, color: str, size: tuple[int, int] | None) -> Pixels:
    """Read one image as uint8 ``(height, width, channels)``; see ``decode_image``.

    Raises:
        DataError: the file cannot be read or is not a complete image; the message names it.
    """
    with room_for_file(path):
        return decode_image(read_image(path), color, size, name=str(path))


def read_image(path: str | Path) -> bytes:
    """Return the content of an image file.

    Its size is limited to that of the largest allowed image without compression.

    Raises:
        DataError: the file cannot be read, is not a regular file, or is too large.
    """
    try:
        return read_regular(path, 4 * limits.image_pixels() + (1 << 20))
    except OSError as error:
        raise DataError(f"the image {path} can't be read: {error.strerror}") from error


def decode_mask(data: bytes, size: tuple[int, int] | None, *, name: str) -> Pixels:
    """Decode a mask of class indices, uint8 ``(height, width)``.

    Args:
        data: content of a file with one channel: gray, palette indices, or black and white.
        size: target ``(height, width)``, by nearest neighbour; None keeps the mask's size.
        name: name of the file, for the message.

    Raises:
        DataError: the mask is broken, has several channels, or more than 8 bits per pixel.
    """
    with _opened(
        data, name, f"the mask {name}", "Repair it, or remove it and its image."
    ) as opened:
        opened.load()
        if opened.mode not in ("L", "P", "1"):
            raise DataError(
                f"the mask {name} has mode {opened.mode}; expected one channel of 8 bits with the "
                "class index of each pixel"
            )
        mask = opened
        if size is not None and mask.size != (size[1], size[0]):
            from PIL import Image

            mask = mask.resize((size[1], size[0]), Image.Resampling.NEAREST)
        return np.asarray(mask).astype(np.uint8)


def decode_image(data: bytes, color: str, size: tuple[int, int] | None, *, name: str) -> Pixels:
    """Decode, turn upright (EXIF), convert and resize one image.

    Args:
        data: content of the file.
        color: ``rgb`` (3 channels) or ``gray`` (1 channel).
        size: target ``(height, width)``, bilinear and antialiased; None keeps the image's size.
        name: name of the file, for the message.

    Raises:
        DataError: the image is broken, truncated, has 16 or 32 bits per channel, or more than 50
            million pixels (``QATLINE_MAX_IMAGE_PIXELS``).
    """
    remedy = "Repair or remove it, or set data.skip_broken=true."
    with _opened(data, name, f"the image {name}", remedy) as opened:
        return _upright(opened, color, size, name)


def is_plain_jpeg(data: bytes, shape: tuple[int, ...]) -> bool:
    """Return whether any decoder based on libjpeg gives the pixels of ``decode_image``.

    Such a JPEG has the wanted size, 8 bits, one component or YCbCr, an end, and neither EXIF nor
    XMP data, which may turn it. Gray images of color files are excluded: Pillow weighs the colors, libjpeg takes
    their luminance.

    Args:
        data: content of the file.
        shape: wanted shape ``(height, width, channels)``.
    """
    if data[:2] != b"\xff\xd8" or data[-2:] != b"\xff\xd9":
        return False
    place, end = 2, len(data) - 10
    while place < end and data[place] == 0xFF:  # segments: marker, length, content
        marker = data[place + 1]
        length, content = int.from_bytes(data[place + 2 : place + 4], "big"), place + 4
        if marker in _FRAMES:
            bits, components = data[content], data[content + 5]
            height = int.from_bytes(data[content + 1 : content + 3], "big")
            width = int.from_bytes(data[content + 3 : content + 5], "big")
            return bits == 8 and (height, width) == shape[:2] and components in (1, shape[2])
        # EXIF and XMP may turn the image; Adobe's segment states the transform, such as none for RGB.
        if marker in (_APP1, _APP14) or (marker < _APP0 and marker not in _TABLES):
            return False
        place += 2 + length
    return False


def as_png(image: Pixels) -> bytes:
    """Return an image ``(height, width, 1 or 3)`` as an uncompressed PNG file."""
    from PIL import Image

    stream = io.BytesIO()
    pixels = image[..., 0] if image.shape[-1] == 1 else image
    Image.fromarray(pixels).save(stream, "PNG", compress_level=0)
    return stream.getvalue()


def upright_size(data: bytes, *, name: str) -> tuple[int, int]:
    """Return ``(height, width)`` of an image or mask as decoded without resizing.

    Args:
        data: content of the file; only its header is read.
        name: name of the file, for the message.

    Raises:
        DataError: the header is broken.
    """
    with _opened(data, name, f"the image {name}", "Repair or remove it.") as opened:
        is_turned = opened.getexif().get(_ORIENTATION, 1) >= _FIRST_TURNED
        width, height = opened.size
        return (width, height) if is_turned else (height, width)


@contextmanager
def _opened(data: bytes, name: str, what: str, remedy: str) -> Iterator[Any]:
    """Open an image within the limit on its size, and translate Pillow's errors."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as opened:
            pixels = opened.width * opened.height
            if pixels > limits.image_pixels():
                raise _too_large(name, f"{opened.width}x{opened.height} pixels")
            with _turn(large=pixels > _LARGE_PIXELS):
                yield opened
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, str(error)) from error
    except Exception as error:  # Pillow's decoders raise arbitrary exceptions for broken data
        raise DataError(f"{what} is broken: {error}. {remedy}") from error


def _upright(opened: Any, color: str, size: tuple[int, int] | None, name: str) -> Pixels:
    from PIL import Image, ImageOps

    opened.load()
    if opened.mode.startswith(("I", "F")):
        raise DataError(
            f"the image {name} has mode {opened.mode}; expected 8 bits a channel: convert it first"
        )
    ImageOps.exif_transpose(opened, in_place=True)
    image: Any = opened.convert("RGBA") if "transparency" in opened.info else opened
    if image.mode != _MODES[color]:  # convert() copies an image of the same mode
        image = image.convert(_MODES[color])
    if size is not None and image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, np.uint8)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _too_large(name: str, received: str) -> DataError:
    return DataError(
        f"the image {name} is too large: expected at most {limits.image_pixels():,} pixels, "
        f"received {received}. Make it smaller, or allow it: {limits.PIXELS_VARIABLE}=170000000."
    )


@contextmanager
def room_for_file(path: Path) -> Iterator[None]:
    """Serialize the reading and decoding of large files within the block."""
    try:
        size = path.stat().st_size
    except OSError:  # reported when it is read
        size = 0
    with _turn(large=size > _LARGE_BYTES):
        yield


@contextmanager
def _turn(*, large: bool) -> Iterator[None]:
    if not large:
        yield
        return
    with _one_large_image:
        yield


def resize_array(batch: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[Any]:
    """Resize ``(batch, height, width, channels)`` of uint8 or float32, bilinear and antialiased."""
    from PIL import Image

    height, width = size
    out = np.empty((len(batch), height, width, batch.shape[-1]), batch.dtype)
    for index, image in enumerate(batch):
        for channel in range(batch.shape[-1]):
            plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
            out[index, ..., channel] = np.asarray(
                plane.resize((width, height), Image.Resampling.BILINEAR)
            )
    return out
