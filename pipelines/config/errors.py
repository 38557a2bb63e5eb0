"""Conversion of config errors into one readable message."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from qatline.components.support.credentials import scrub

CONTRADICTIONS = "contradictions"
"""Type of the error of a config whose sections contradict each other."""

_LONGEST = 200  # characters of a value in a message


@dataclass(frozen=True, kw_only=True)
class ConfigProblem:
    """One mistake in a config.

    Attributes:
        source: file, profile or option; empty if the text names it.
        key: dotted path of the key; empty for none.
        text: the mistake, with the key.
        meant: the existing key next to an unknown one; empty for none.
    """

    source: str
    key: str
    text: str
    meant: str = ""


def unknown_keys(
    values: Mapping[str, Any], model: type[BaseModel], *, source: str
) -> list[ConfigProblem]:
    """Return each unknown key, with its nearest match."""
    known = list(known_paths(model))
    problems = []
    for path in _unknown(values, model, prefix=""):
        near, hint = _suggest(path, known)
        text = f"unknown key {path!r}; {hint}"
        problems.append(ConfigProblem(source=source, key=path, text=text, meant=near))
    return problems


def known_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every settings key, sections included."""
    for name, field in model.model_fields.items():
        yield prefix + name
        section = _section(field.annotation)
        if section is not None:
            yield from known_paths(section, f"{prefix}{name}.")


def describe_problems(error: ValidationError, source: str) -> str:
    """Return one line per invalid value: path, expected, received."""
    return message_of(value_problems(error, source))


def value_problems(error: ValidationError, source: str, prefix: str = "") -> list[ConfigProblem]:
    """Return each invalid value: path, expected, received.

    Args:
        error: the error of a section or of a whole config.
        source: origin of the values.
        prefix: path of the section, with a dot at its end; empty for a whole config.
    """
    expected: dict[str, list[str]] = {}
    received: dict[str, str] = {}
    keys: dict[str, str] = {}
    for item in error.errors(include_url=False):
        parts = [str(part) for part in item["loc"] if not _names_a_type(part)]
        path = prefix + ".".join(parts) if parts else prefix.rstrip(".")
        message = str(item["msg"]).removeprefix("Value error, ")
        # These three kinds have complete messages. The others are assembled below from expected and
        # received; a union reports an expected type per member.
        if item["type"] == CONTRADICTIONS:
            for key, text in item["ctx"]["found"]:
                expected[text] = []
                keys[text] = key
            continue
        if item["type"] == "stored_value":
            place, problem = item["ctx"]["path"], item["ctx"]["problem"]
            place = f"{path}.{place}" if path else place
            expected[f"{place}: {problem}"] = []
            keys[f"{place}: {problem}"] = place
            continue
        if item["type"] == "value_error":
            text = message if not path or message.startswith(path) else f"{path}: {message}"
            expected[text] = []
            keys[text] = path
            continue
        if item["type"] in _EXPECTED:
            message = _EXPECTED[item["type"]].format(**item.get("ctx", {}))
        else:
            message = message[:1].lower() + message[1:]
        expected.setdefault(path, []).append(message)
        received.setdefault(path, _shown(item["input"]))
        keys[path] = path
    problems = []
    for text, wanted in expected.items():
        problem = f": expected {' or '.join(wanted)}, received {received[text]}" if wanted else ""
        problems.append(ConfigProblem(source=source, key=keys[text], text=text + problem))
    return problems


def overlap(key: str, other: str) -> bool:
    """Return whether two keys are equal, or one is the section of the other.

    Examples:
        >>> overlap("training", "training.epochs"), overlap("qat.ema", "qat.epochs")
        (True, False)
    """
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def message_of(problems: Sequence[ConfigProblem]) -> str:
    """Return the message on one or more mistakes, by their sources."""
    by_source: dict[str, list[str]] = {}
    for problem in problems:
        by_source.setdefault(problem.source, []).append(problem.text)
    lines = []
    for source, texts in by_source.items():
        if not source:
            lines += texts
        elif len(texts) == 1:
            lines.append(f"{source}: {texts[0]}")
        else:
            lines.append(f"{source}: {len(texts)} problems\n  - " + "\n  - ".join(texts))
    return "\n".join(lines)


def _shown(value: Any) -> str:
    """Return a value for a message, truncated and without secrets."""
    text = scrub(repr(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _names_a_type(part: int | str) -> bool:
    """Return whether a part of an error location is a union member instead of a key."""
    return isinstance(part, str) and (
        part in ("str", "int", "float", "bool") or part.startswith(("list[", "dict["))
    )


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


def _suggest(path: str, known: list[str]) -> tuple[str, str]:
    """Return the nearest existing key, empty for none, and the hint."""
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
            return names[near[0]], f"did you mean {names[near[0]]!r}?"
    if siblings:
        return "", f"expected one of: {', '.join(siblings)}"
    return "", "unknown section"


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
