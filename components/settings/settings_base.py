"""Base of all config sections."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from qatline.components.settings.config_values import value_problem

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
