"""A JSON object as a frozen class.

The fields are its keys, in the order in which they are written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Record(BaseModel):
    """Base of the records in an artifact's files.

    A key that nothing reads is left out.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True, protected_namespaces=())

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with the keys that were given."""
        return self.model_dump(by_alias=True, exclude_unset=True)


def _measured(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _given_text(value: object) -> object:
    return value if isinstance(value, str) else ""


def objects(value: object) -> dict[Any, Any]:
    """Return a mapping's entries that are JSON objects or records.

    Empty for anything else than a mapping.
    """
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: item for name, item in items if isinstance(item, Mapping | Record)}


Measured = Annotated[int | float | None, BeforeValidator(_measured)]
"""A finite number. All else counts as not measured, so that a NaN never passes a bound."""

Text = Annotated[str, BeforeValidator(_given_text)]
"""A text; a null of an older run is empty."""
