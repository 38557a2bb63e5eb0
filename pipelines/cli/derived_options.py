"""The options of ``qatline export``, derived from the fields of ``ExportOptions``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from qat_lib.export.options import ExportOptions, OptionField, option_fields


def with_export_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add a command-line option for each exposed ``ExportOptions`` field.

    Args:
        function: the command. In place of its parameter ``options`` the options stand; it gets a
            function that makes the ``ExportOptions``, and takes values that differ.
    """
    derived = [each for each in option_fields() if each.info.in_command]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        chosen = {each.name: values.pop(each.name) for each in derived}
        function(options=functools.partial(ExportOptions, **chosen), **values)

    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "options":
            parameters += map(_parameter, derived)
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(option: OptionField) -> inspect.Parameter:
    info = option.info
    declared = typer.Option(
        info.flag or f"--{option.name.replace('_', '-')}",
        help=info.help,
        min=info.least,
        max=info.most,
        show_default=option.default is not None,
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=option.default,
        annotation=Annotated[option.kind, declared],
    )
