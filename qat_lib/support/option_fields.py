"""Dataclass fields with the full description of an option, shared by config and command line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_type_hints

_INFO = "option"


@dataclass(frozen=True, kw_only=True)
class OptionInfo:
    """Description of an option in config and command line.

    Attributes:
        help: effect of the option, in a line.
        least: smallest number allowed, or None.
        most: largest number allowed, or None.
        above: exclusive lower bound, or None.
        below: exclusive upper bound, or None.
        flag: name on the command line; empty: ``--`` and the field's name.
        in_config: whether the option is a key of the config.
        in_command: whether the option is a flag of the command.
        command_help: help text of the command; empty: ``help``.
        command_least: smallest number allowed by the command; None: ``least``.
        command_kind: type of the option on the command line; None: that of the field.
    """

    help: str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    flag: str = ""
    in_config: bool = True
    in_command: bool = True
    command_help: str = ""
    command_least: float | None = None
    command_kind: Any = None


@dataclass(frozen=True, kw_only=True)
class OptionField:
    """One field of a dataclass of options with its type and default."""

    name: str
    kind: Any
    default: Any
    info: OptionInfo


def about(help: str, **values: Any) -> dict[str, OptionInfo]:
    """Return the metadata of a field: the attributes of ``OptionInfo``."""
    return {_INFO: OptionInfo(help=help, **values)}


def fields_of(options: type) -> list[OptionField]:
    """Return the fields of an options dataclass in order."""
    # ``field.type`` is a string under ``from __future__ import annotations``.
    kinds = get_type_hints(options)
    found = []
    for each in fields(options):
        info = each.metadata[_INFO]
        found.append(
            OptionField(name=each.name, kind=kinds[each.name], default=each.default, info=info)
        )
    return found
