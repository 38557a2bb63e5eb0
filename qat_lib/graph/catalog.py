"""Catalog: a front end's quantizable classes, and advice about others."""

from __future__ import annotations

from typing import Any, Protocol


class Catalog(Protocol):
    """The classes that a front end can quantize.

    Attributes:
        noun: what makes a class quantizable, as in "no wrapper supports it".
    """

    noun: str

    def class_named(self, name: str) -> Any:
        """Return the class of that name as in ``Traits.classes``.

        None means that it is not supported.
        """

    def class_names(self) -> list[str]:
        """Return the names of all classes that can be quantized, sorted."""

    def remedy(self, name: str) -> str:
        """Return, in a few words, how to support a class."""

    def advice(self, name: str) -> str:
        """Return a sentence that says how to support a class."""
