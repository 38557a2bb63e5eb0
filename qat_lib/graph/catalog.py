"""Catalog: the quantizable classes of a front end, and advice about other classes."""

from __future__ import annotations

from typing import Any, Protocol


class Catalog(Protocol):
    """Quantizable classes of a front end.

    Attributes:
        noun: the object that makes a class quantizable, as in "no wrapper supports it".
    """

    noun: str

    def class_named(self, name: str) -> Any:
        """Return the class of that name as in ``Traits.classes``, or None if unsupported."""

    def class_names(self) -> list[str]:
        """Return the sorted names of all quantizable classes."""

    def remedy(self, name: str) -> str:
        """Return the way to support a class, in a few words."""

    def advice(self, name: str) -> str:
        """Return a sentence about the way to support a class."""
