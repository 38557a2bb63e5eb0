"""Conversion of config errors into one readable message."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from qat_lib.errors import ConfigError
from qatline.components.support.credentials import scrub

_LONGEST = 200  # characters of a value in a message


def check_keys(values: Mapping[str, Any], model: type[BaseModel], *, source: str) -> None:
    """Raise a ConfigError with each unknown key and its nearest match."""
    known = list(known_paths(model))
    problems = []
    for path in _unknown(values, model, prefix=""):
        problems.append(f"unknown key {path!r}; {_suggest(path, known)}")
    if problems:
        raise ConfigError(_message(source, problems))


def known_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every settings key, sections included."""
    for name, field in model.model_fields.items():
        yield prefix + name
        section = _section(field.annotation)
        if section is not None:
            yield from known_paths(section, f"{prefix}{name}.")


def describe_problems(error: ValidationError, source: str) -> str:
    """Return one line per invalid value: path, expected, received."""
    expected: dict[str, list[str]] = {}
    received: dict[str, str] = {}
    for item in error.errors(include_url=False):
        path = ".".join(str(part) for part in item["loc"] if not _names_a_type(part))
        message = str(item["msg"]).removeprefix("Value error, ")
        if item["type"] == "stored_value":
            place, problem = item["ctx"]["path"], item["ctx"]["problem"]
            expected[f"{path}.{place}: {problem}" if path else f"{place}: {problem}"] = []
            continue
        if item["type"] == "value_error":
            expected[message if message.startswith(path) else f"{path}: {message}"] = []
            continue
        if item["type"] in _EXPECTED:
            message = _EXPECTED[item["type"]].format(**item.get("ctx", {}))
        else:
            message = message[:1].lower() + message[1:]
        expected.setdefault(path, []).append(message)
        received.setdefault(path, _shown(item["input"]))
    lines = []
    for path, wanted in expected.items():
        problem = f": expected {' or '.join(wanted)}, received {received[path]}" if wanted else ""
        lines.append(path + problem)
    return _message(source, lines)


def _shown(value: Any) -> str:
    """Return a value for a message, truncated and without secrets."""
    text = scrub(repr(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _names_a_type(part: int | str) -> bool:
    """Return whether a part of an error location is a union member instead of a key."""
    return isinstance(part, str) and (
        part in ("str", "int", "float", "bool") or part.startswith(("list[", "dict["))
    )


def _message(source: str, problems: list[str]) -> str:
    if len(problems) == 1:
        return f"{source}: {problems[0]}"
    return f"{source}: {len(problems)} problems\n  - " + "\n  - ".join(problems)


def _unknown(values: Mapping[str, Any], model: type[BaseModel], prefix: str) -> Iterator[str]:
    for key, value in values.items():
        field = model.model_fields.get(key)
        if field is None:
            yield prefix + str(key)
            continue
        section = _section(field.annotation)
        if section is not None and isinstance(value, Mapping):
            yield from _unknown(value, section, f"{prefix}{key}.")


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        return next(
            (found for part in get_args(annotation) if (found := _section(part)) is not None), None
        )
    return None


def _suggest(path: str, known: list[str]) -> str:
    parent, _, name = path.rpartition(".")
    siblings = {
        other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == parent
    }
    everywhere = {other.rpartition(".")[2]: other for other in reversed(known)}
    # The sibling first, then the right key in the wrong place.
    for names in (siblings, everywhere):
        near = [name] if name in names else difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        near = near or [other for other in names if _initials(other) == name]
        if near:
            return f"did you mean {names[near[0]]!r}?"
    return f"expected one of: {', '.join(siblings)}" if siblings else "there is no such section"


def _initials(name: str) -> str:
    return "".join(part[:1] for part in name.split("_"))


_EXPECTED = {
    "int_parsing": "an integer",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "missing": "a value",
    "extra_forbidden": "no key of this name",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number less than {lt}",
    "less_than_equal": "a number of at most {le}",
    "literal_error": "one of {expected}",
}
