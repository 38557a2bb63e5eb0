"""Dataclass fields that say all about an option: config and command line derive theirs from them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_type_hints

_INFO = "option"


@dataclass(frozen=True, kw_only=True)
class OptionInfo:
    """What config and command line show of an option.

    Attributes:
        help: what it does, in a line.
        least: smallest number allowed, or None.
        most: largest number allowed, or None.
        above: number that it must exceed, or None.
        below: number that it must stay below, or None.
        flag: its name on the command line; empty: ``--`` and the field's name.
        in_config: whether it is a key of the config.
        in_command: whether the command has it.
        command_help: what the command says of it; empty: ``help``.
        command_least: smallest number that the command allows; None: ``least``.
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
    """Return the fields of a dataclass of options in order."""
    kinds = get_type_hints(options)
    found = []
    for each in fields(options):
        info = each.metadata[_INFO]
        found.append(
            OptionField(name=each.name, kind=kinds[each.name], default=each.default, info=info)
        )
    return found
