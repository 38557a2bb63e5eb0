import os
from pathlib import Path

import pytest

from qat_lib.errors import ConfigError
from qat_lib.files.text_files import parse_json, read_json, read_text


def test_read_text_drops_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfgr\xc3\xbcn")
    assert read_text(path, what="a text", error=ConfigError) == "grün"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "Expected a plan at .*; there is none"),
        ("folder", "it is a folder, expected a regular file"),
        ("pipe", "it is a pipe, expected a regular file"),
        ("device", "it is a device"),
        ("large", "it has 5,000 bytes, expected at most 4,096"),
        ("binary", "in UTF-8 at .*, received the byte 0xff at position 3"),
        ("null", "Could not read a plan"),
        ("under a file", "Could not read a plan .*Not a directory"),
    ],
)
@pytest.mark.timeout(60)
def test_read_text_refuses_non_text_at_once(tmp_path: Path, kind: str, message: str) -> None:
    path = tmp_path / "plan.json"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
        case "large":
            path.write_bytes(b" " * 5000)
        case "binary":
            path.write_bytes(b"abc\xff")
        case "null":
            path = tmp_path / "a\0b"
        case "under a file":
            path.write_text("x")
            path = path / "y"
    with pytest.raises(ConfigError, match=message):
        read_text(path, what="a plan", error=ConfigError, limit=4 << 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x: received no valid JSON: Expecting value"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is given twice"),
        ("9" * 5000, "x: received no valid JSON: Exceeds the limit"),
    ],
)
def test_parse_json_refuses_in_one_message(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_json(text, "x", error=ConfigError)


def test_read_json_accepts_foreign_duplicate_keys(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    path.write_text('{"a": 1, "a": 2}')
    assert read_json(path, what="layers", error=ConfigError, unique=False) == {"a": 2}
    with pytest.raises(ConfigError, match="given twice"):
        read_json(path, what="layers", error=ConfigError)
