"""Unusable user code named by a config."""

from pathlib import Path

import pytest

from qat_lib.errors import ConfigError, DataError
from qatline.components.support.user_code import call, call_with, import_callable


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "raises_on_import.py").write_text("raise KeyError('x')\n")
    (tmp_path / "no_python.py").write_text("def f(:\n")


@pytest.mark.parametrize(
    "reference", [":", "a:", ":b", "..:x", "a b:c", "a:b c", "json.:loads", ""]
)
def test_import_callable_refuses_what_is_no_reference(reference: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"model.name: .* names nothing that can be imported. Expected module:attr",
    ):
        import_callable("model.name", reference)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no.such:thing", "ModuleNotFoundError"),
        ("json:nothing", "AttributeError"),
        ("raises_on_import:x", "KeyError"),
        ("no_python:x", "SyntaxError"),
        ("os:sep", "is a str, expected a function or class"),
    ],
)
def test_import_callable_gives_the_reason(reference: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"model.name: '{reference}' .*{message}"):
        import_callable("model.name", reference)


def test_call_gives_the_reason() -> None:
    def fails(error: Exception) -> None:
        raise error

    with pytest.raises(ConfigError, match=r"model.name: 'm:f' failed: ZeroDivisionError: by zero"):
        call("model.name", "m:f", fails, error=ZeroDivisionError("by zero"))
    with pytest.raises(DataError, match="own"):
        call("model.name", "m:f", fails, error=DataError("own"))
    assert call("model.name", "m:f", int) == 0


def test_call_with_gives_what_the_function_names() -> None:
    def named(a: int, b: int = 0) -> tuple[int, int]:
        return a, b

    given = {"a": 1, "c": 3}
    assert call_with("model.name", "m:f", named, given, {"b": 2}) == (1, 2)
    assert call_with("model.name", "m:f", named, given, {"a": 7}) == (7, 0)
    with pytest.raises(ConfigError, match="unexpected keyword argument 'd'"):
        call_with("model.name", "m:f", named, given, {"d": 4})


@pytest.mark.parametrize(("any_keyword", "expected"), [(False, {"b": 2}), (True, {"b": 2, "a": 1})])
def test_call_with_fills_keywords_on_request(any_keyword: bool, expected: dict[str, int]) -> None:
    found = call_with("model.name", "m:f", dict, {}, {"b": 2})
    assert found == {"b": 2}

    def anything(**keywords: int) -> dict[str, int]:
        return keywords

    found = call_with("k", "m:f", anything, {"a": 1}, {"b": 2}, any_keyword=any_keyword)
    assert found == expected
