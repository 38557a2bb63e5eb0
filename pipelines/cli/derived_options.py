"""Options of commands that are derived from the fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_type_hints

import typer

from qat_lib.export.options import ExportOptions, option_fields
from qat_lib.support.option_fields import OptionField, fields_of
from qatline.components.support.training_options import FinetuningOptions


def with_export_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add a command-line option for each exposed ``ExportOptions`` field.

    Args:
        function: the command. In place of its parameter ``options`` the options stand; it gets a
            function that makes the ``ExportOptions``, and takes values that differ.
    """
    return _with_options(function, option_fields(), ExportOptions)


def with_finetuning_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add a command-line option for each exposed ``FinetuningOptions`` field.

    Args:
        function: the command. In place of its parameter ``options`` the options stand; it gets
            their values by name.
    """
    return _with_options(function, fields_of(FinetuningOptions), dict)


def _with_options(
    function: Callable[..., None],
    fields: Sequence[OptionField],
    make: Callable[..., Any],
) -> Callable[..., None]:
    derived = [each for each in fields if each.info.in_command]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        chosen = {each.name: values.pop(each.name) for each in derived}
        function(options=functools.partial(make, **chosen), **values)

    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "options":
            parameters += [_parameter(each) for each in derived]
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(option: OptionField) -> inspect.Parameter:
    info = option.info
    bounds = (info.command_least, info.least, info.above)
    least = next((bound for bound in bounds if bound is not None), None)
    declared = typer.Option(
        info.flag or f"--{option.name.replace('_', '-')}",
        help=info.command_help or info.help,
        min=least,
        max=info.below if info.most is None else info.most,
        show_default=option.default is not None,
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=option.default,
        annotation=Annotated[info.command_kind or option.kind, declared],
    )
