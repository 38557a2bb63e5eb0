"""Catalog: the classes that a front end can quantize, and what to do about others."""

from __future__ import annotations

from typing import Any, Protocol


class Catalog(Protocol):
    """The classes that a front end can quantize.

    Attributes:
        noun: what makes a class quantizable, as in "no wrapper supports it".
    """

    noun: str

    def class_named(self, name: str) -> Any:
        """Return what ``Traits.classes`` holds for a class of that name; None = not supported."""

    def class_names(self) -> list[str]:
        """Return the names of all classes that can be quantized, sorted."""

    def remedy(self, name: str) -> str:
        """Return, in a few words, how to support a class."""

    def advice(self, name: str) -> str:
        """Return a sentence that says how to support a class."""
