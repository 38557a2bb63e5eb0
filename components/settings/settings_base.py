"""Base of all config sections."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from qatline.components.settings.config_values import value_problem

_log = logging.getLogger(__name__)

Batch = Annotated[int, Field(ge=1, le=65_536)]


class Settings(BaseModel):
    """Base of every section: immutable, without secrets or unknown keys.

    An unknown key is an error.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        hide_input_in_errors=True,
    )

    @model_validator(mode="after")
    def _can_be_stored(self) -> Settings:
        """Refuse values that can't be stored, and secrets."""
        if (found := value_problem(self)) is not None:
            raise PydanticCustomError(
                "stored_value", "{path}: {problem}", {"path": found[0], "problem": found[1]}
            )
        return self


def renamed(values: Any, former: Mapping[str, str], section: str) -> Any:
    """Return a section's values with former keys under their names of today.

    Args:
        values: the values as given; anything but a mapping is returned unchanged.
        former: name of today by former name.
        section: name of the section, for the message.
    """
    if not isinstance(values, Mapping):
        return values
    found = dict(values)
    for old, new in former.items():
        if old in found and new not in found:
            _log.warning("%s.%s is called %s.%s now.", section, old, section, new)
            found[new] = found.pop(old)
    return found
