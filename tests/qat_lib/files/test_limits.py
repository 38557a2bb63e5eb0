"""Limits on files, and the environment variables that change them."""

import pytest

from qat_lib.errors import ConfigError
from qat_lib.files import limits


def test_unpacked_bytes_grow_with_the_file() -> None:
    assert limits.unpacked_bytes(0) == 256 << 20
    assert limits.unpacked_bytes(1 << 30) == 16 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("7B", 7), ("2k", 2048), ("3 MiB", 3 << 20), ("4GiB", 4 << 30), ("1TB", 1 << 40)],
)
def test_unpacked_bytes_take_the_variable(
    monkeypatch: pytest.MonkeyPatch, text: str, size: int
) -> None:
    monkeypatch.setenv("QATLINE_MAX_UNPACKED", text)
    assert limits.unpacked_bytes(1 << 40) == size


@pytest.mark.parametrize("text", ["-1", "lots", "1.5GiB", "9" * 30])
def test_variable_that_is_no_size_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("QATLINE_MAX_IMAGE_PIXELS", text)
    with pytest.raises(ConfigError, match="QATLINE_MAX_IMAGE_PIXELS: expected a whole number"):
        limits.image_pixels()
