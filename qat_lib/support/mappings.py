"""Small helpers for mappings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
Result = TypeVar("Result")


def map_values(
    function: Callable[[Value], Result], values: Mapping[Key, Value]
) -> dict[Key, Result]:
    """Return a dict with the same keys and ``function`` applied to each value."""
    return {key: function(value) for key, value in values.items()}
