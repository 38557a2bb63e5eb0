"""What an image file may ask for, and what it may be."""

import io
import os
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from qat_lib.errors import DataError
from qatline.components.data import images
from qatline.components.data.images import (
    as_png,
    decode_image,
    is_plain_jpeg,
    load_image,
    read_image,
)


def test_read_image_takes_regular_files_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "self.png").symlink_to("self.png")
    for name, reason in (
        ("pipe", "it is a pipe, expected a regular file"),
        ("zero", "it is a device"),
        ("folder", "it is a folder"),
        ("self", "symbolic links"),
    ):
        with pytest.raises(DataError, match=rf"{name}\.png can't be read: .*{reason}"):
            read_image(tmp_path / f"{name}.png")


def test_read_image_bounds_the_size_of_the_file(tmp_path: Path) -> None:
    with (tmp_path / "sparse.png").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(
        DataError,
        match=r"sparse\.png can't be read: it has 1,099,511,627,776 bytes, expected at most",
    ):
        read_image(tmp_path / "sparse.png")


def _bitmap(width: int, height: int) -> bytes:
    """Return a PNG that names a size and holds no pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (head, b"IDAT" + zlib.compress(b""), b"IEND")
    parts = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("side", [7_072, 10_000, 20_000, 2**31 - 1])
def test_decode_image_reads_the_size_first(side: int) -> None:
    with pytest.raises(
        DataError, match=r"image bomb is too large: expected at most 50,000,000 pixels.*QATLINE_MAX"
    ):
        decode_image(_bitmap(side, side), "rgb", None, name="bomb")


def test_decode_image_pixel_limit_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "image.png"
    Image.new("L", (30, 20)).save(path)
    monkeypatch.setenv("QATLINE_MAX_IMAGE_PIXELS", "599")
    with pytest.raises(DataError, match="at most 599 pixels, received 30x20 pixels"):
        load_image(path, "gray", None)
    monkeypatch.setenv("QATLINE_MAX_IMAGE_PIXELS", "600")
    assert load_image(path, "gray", None).shape == (20, 30, 1)


def test_decode_image_opens_only_allowed_formats(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    with pytest.raises(DataError, match="cannot identify image file"):
        load_image(tmp_path / "x.png", "rgb", None)


def test_large_files_are_read_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, most = 0, 0
    original = images.read_regular

    def counted(path: Path, limit: int) -> bytes:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.02)
        inside -= 1
        return original(path, min(limit, 1))

    monkeypatch.setattr(images, "read_regular", counted)
    paths = [tmp_path / f"{index}.png" for index in range(4)]
    for path in paths:
        with path.open("wb") as stream:
            stream.truncate(20_000_000)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(load_image, path, "rgb", None) for path in paths]
    assert all(isinstance(done.exception(), DataError) for done in waiting)
    assert most == 1


def jpeg(mode: str = "RGB", size: tuple[int, int] = (13, 10), **options: Any) -> bytes:
    """Return a JPEG file of coarse noise, ``size`` is width and height."""
    noise = np.random.default_rng(0).integers(0, 256, (5, 6, 3), np.uint8)
    stream = io.BytesIO()
    image = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).convert(mode)
    image.save(stream, "JPEG", **options)
    return stream.getvalue()


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.mark.parametrize("color", ["rgb", "gray"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"progressive": True},
        {"optimize": True, "quality": 5},
        {"subsampling": 0},
        {"subsampling": 1, "quality": 100},
        {"restart_marker_blocks": 2},
        {"comment": b"a comment"},
    ],
    ids=str,
)
def test_plain_jpeg_has_pillows_pixels_in_tensorflow(
    color: str, mode: str, options: dict[str, Any]
) -> None:
    tf = pytest.importorskip("tensorflow")
    shape = (10, 13, 3 if color == "rgb" else 1)
    data = jpeg(mode, **options)
    assert is_plain_jpeg(data, shape) == (color == "rgb" or mode == "L")
    expected = decode_image(data, color, None, name="x")
    if not is_plain_jpeg(data, shape):
        data = as_png(expected)
    found = tf.io.decode_jpeg(data, channels=shape[-1], dct_method="INTEGER_ACCURATE").numpy()
    np.testing.assert_array_equal(found, expected)


def test_other_images_are_not_plain() -> None:
    shape = (10, 13, 3)
    assert is_plain_jpeg(jpeg(), shape)
    assert not is_plain_jpeg(jpeg(), (13, 10, 3))
    assert not is_plain_jpeg(jpeg("CMYK"), shape)
    assert not is_plain_jpeg(jpeg(exif=turned()), shape)
    turned_by_xmp = jpeg(xmp=b'<rdf tiff:Orientation="3"/>')
    upright = decode_image(jpeg(), "rgb", None, name="x")
    np.testing.assert_array_equal(
        decode_image(turned_by_xmp, "rgb", None, name="x"), upright[::-1, ::-1]
    )
    assert not is_plain_jpeg(turned_by_xmp, shape)
    assert not is_plain_jpeg(jpeg(keep_rgb=True), shape)
    assert not is_plain_jpeg(as_png(np.zeros(shape, np.uint8)), shape)
    whole = jpeg()
    for length in range(len(whole)):
        assert not is_plain_jpeg(whole[:length], shape)


@pytest.mark.parametrize("place", range(2, 40))
def test_damaged_head_of_a_jpeg_ends_without_an_exception(place: int) -> None:
    data = jpeg()
    for value in (0, 0xC0, 0xD8, 0xFF):
        is_plain_jpeg(data[:place] + bytes([value]) + data[place + 1 :], (10, 13, 3))
