"""Deprecated names: they work for one release, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that an argument has a new name.

    Args:
        old: the deprecated name.
        new: the name to use.
        stacklevel: which caller the warning points to. Default 3: who called the function that
            calls this one.
    """
    warnings.warn(
        f"{old} is now {new}; the old name goes with the next release.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )


@dataclass(frozen=True)
class RenamedField:
    """A field of a dataclass that has a new name.

    Attributes:
        new: the name to use.
        to_new: the new value for an old one, where the unit changed as well.
        to_old: the old value for a new one.
    """

    new: str
    to_new: Callable[[Any], Any] = lambda value: value
    to_old: Callable[[Any], Any] = lambda value: value


def renamed_fields(renamed: Mapping[str, RenamedField]) -> Callable[[type[_T]], type[_T]]:
    """Return a dataclass decorator that keeps fields' old names usable.

    They can be given and read. Both warn. Where both names are given, as ``dataclasses.replace``
    does, the old one counts.

    Args:
        renamed: the new field for each old name.
    """

    def decorate(cls: type[_T]) -> type[_T]:
        original: Any = cls.__init__

        @functools.wraps(original)
        def initialize(self: _T, *arguments: Any, **values: Any) -> None:
            for old in values.keys() & renamed.keys():
                field = renamed[old]
                warn_renamed(f"{cls.__name__}.{old}", field.new)
                values[field.new] = field.to_new(values.pop(old))
            original(self, *arguments, **values)

        cls.__init__ = initialize  # type: ignore[assignment]
        for old, field in renamed.items():
            setattr(cls, old, property(_old_value(old, field)))
        return cls

    return decorate


def _old_value(old: str, field: RenamedField) -> Callable[[Any], Any]:
    def read(self: Any) -> Any:
        warn_renamed(f"{type(self).__name__}.{old}", field.new)
        return field.to_old(getattr(self, field.new))

    read.__doc__ = f"Return the value of ``{field.new}``; deprecated."
    return read


def with_new_names(
    values: Mapping[str, Any], renamed: Mapping[str, RenamedField]
) -> dict[str, Any]:
    """Return a file's values with old names replaced, without a warning.

    A file that was written before stays readable.
    """
    found = dict(values)
    for old, field in renamed.items():
        if old in found and field.new not in found:
            found[field.new] = field.to_new(found.pop(old))
    return found
