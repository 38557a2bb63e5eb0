"""JSON objects as frozen classes; fields are keys in the order of the file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Record(BaseModel):
    """Base of the records in an artifact's files; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, protected_namespaces=())

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types for the explicitly set keys."""
        return self.model_dump(by_alias=True, exclude_unset=True)


def _measured(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _given_text(value: object) -> object:
    return value if isinstance(value, str) else ""


def objects(value: object) -> dict[Any, Any]:
    """Return a mapping's entries that are JSON objects or records; empty for other types."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: item for name, item in items if isinstance(item, Mapping | Record)}


Measured = Annotated[int | float | None, BeforeValidator(_measured)]
"""A finite number. Other values count as not measured: a NaN never passes a bound."""

Text = Annotated[str, BeforeValidator(_given_text)]
"""A text; nulls of older runs become empty."""
