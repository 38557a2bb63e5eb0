import time
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import ConfigError
from qat_lib.files.strict_yaml import LIMIT, parse_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        (
            "a: [1, 1.5, 1e-4, true, null, ~, text, '7']",
            {"a": [1, 1.5, 1e-4, True, None, None, "text", "7"]},
        ),
        ("a: &a {b: 1, c: 2}\nd: {<<: *a, c: 3}", {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}}),
        ("day: 2026-01-31", {"day": "2026-01-31"}),
        ("a: &x [1]\nb: [*x, *x]", {"a": [1], "b": [[1], [1]]}),
    ],
)
def test_parse_yaml_gives_plain_values(text: str, value: Any) -> None:
    parsed = parse_yaml(text, "x", error=ConfigError)
    assert parsed == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]", "unconstructable recursive node"),
        ("a: &a {b: *a}", "unconstructable recursive node"),
        ("[" * 20_000, "nested too deeply"),
        ("{a: " * 20_000, "nested too deeply"),
        ("- " * 20_000, "nested too deeply"),
        ("? " * 20_000, "nested too deeply"),
        ("a: " + "9" * 5000, "expected YAML: Exceeds the limit"),
        ("a: !!int " + "9" * 5000, "expected YAML: Exceeds the limit"),
        ("a: !!int text", "expected YAML: invalid literal"),
        ("a: !!binary aGk=", "could not determine a constructor"),
        ("a: !!set {x}", "could not determine a constructor"),
        ("a: !!timestamp 2026-01-01", "could not determine a constructor"),
        ("a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a: 1\na: 2", "line 2, column 1: the key 'a' is given twice"),
        ("{[a]: 1}", "expected a text key"),
        ("a: *b", "found undefined alias"),
        ("a: 1\n---\nb: 2", "but found another document"),
        ("a: '\x01'", "special characters are not allowed"),
        ("x" * (LIMIT + 1), "expected YAML of at most 512 KiB"),
    ],
)
def test_parse_yaml_refuses_at_once(text: str, message: str) -> None:
    started = time.monotonic()
    with pytest.raises(ConfigError, match=message) as caught:
        parse_yaml(text, "--set a", error=ConfigError)
    assert str(caught.value).startswith("--set a")
    assert len(str(caught.value)) < 400
    assert time.monotonic() - started < 60


def test_read_yaml_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("a: [\n")
    with pytest.raises(ConfigError, match=f"{path}, line 2"):
        read_yaml(path, what="a config file", error=ConfigError)
