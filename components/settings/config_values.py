"""Validation of config values: they must be storable and must not be secrets.

A config is written to files, MLflow and Kubeflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from qatline.components.support.credentials import secret_problem

LARGEST_INTEGER = 2**53
"""Largest exact integer: parameters of a pipeline are transferred as doubles."""

SECRET_REFERENCES: dict[str, Any] = {"x-secret-references": True}
"""Marks a field (``json_schema_extra``) with names of secrets instead of secrets."""


def value_problem(settings: BaseModel) -> tuple[str, str] | None:
    """Return path and problem of a section's first value that cannot be stored.

    Nested sections check their own values.
    """
    for name, field in type(settings).model_fields.items():
        if field.json_schema_extra == SECRET_REFERENCES:
            continue
        for path, value in _leaves(name, getattr(settings, name)):
            problem = secret_problem(path.rpartition(".")[2], value) or _unstorable(value)
            if problem is not None:
                return path, problem
    return None


def restore_integers(value: Any) -> Any:
    """Convert whole floats back into integers, at any depth.

    Dict parameters of a KFP component are transferred as a protobuf Struct, in which ``{"depth":
    3}`` becomes ``{"depth": 3.0}``. An integer is valid in place of a float, but not vice versa.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST_INTEGER:
        return int(value)
    if isinstance(value, Mapping):
        return {key: restore_integers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [restore_integers(item) for item in value]
    return value


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}", item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(path, item)
    elif not isinstance(value, BaseModel):
        yield path, value


def _unstorable(value: Any) -> str | None:
    if isinstance(value, str):
        if "\0" in value:
            return "expected text without null characters"
        try:
            value.encode()
        except UnicodeEncodeError:
            return "expected text in UTF-8, received bytes that are none"
        return None
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return (
            None
            if abs(value) <= LARGEST_INTEGER
            else "expected a whole number up to 2**53, received a larger one"
        )
    if isinstance(value, float):
        return None if math.isfinite(value) else f"expected a finite number, received {value}"
    return f"expected text, a number, true, false or null, received {type(value).__name__}"
