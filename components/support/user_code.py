"""Import of user code named as ``module:attribute`` in a config.

User code may fail in any way.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qat_lib.errors import ConfigError, QatlineError
from qat_lib.support.foreign_errors import describe_error


def find_user_modules() -> None:
    """Make the user's modules in the working directory importable, after installed packages.

    A checkout of qatline follows them: its folders ``components`` and ``pipelines`` do not hide the
    user's.
    """
    here, checkout = os.getcwd(), str(Path(__file__).resolve().parents[2])
    if here in sys.path:
        return
    before = sys.path[: sys.path.index(checkout)] if checkout in sys.path else []
    is_behind = sysconfig.get_path("purelib") in before
    sys.path.insert(len(before) if is_behind else len(sys.path), here)


def import_callable(setting: str, reference: str) -> Any:
    """Return the function or class named by ``reference``.

    Args:
        setting: key of the config, for the message.
        reference: ``module:attribute``, on the Python path.

    Raises:
        ConfigError: it does not exist, or its module cannot be imported.
    """
    module_name, _, attribute = reference.partition(":")
    expected = "Expected module:attribute, on the Python path."
    if not attribute.isidentifier() or not all(
        part.isidentifier() for part in module_name.split(".")
    ):
        raise ConfigError(
            f"{setting}: {reference!r} names nothing that can be imported. {expected}"
        )
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # the module's own code runs
        raise ConfigError(
            f"{setting}: {reference!r} can't be imported: {_reason(error)}. {expected}"
        ) from error
    if not callable(found):
        raise ConfigError(
            f"{setting}: {reference!r} is a {type(found).__name__}, expected a function or class."
        )
    return found


def import_modules(modules: Iterable[str], purpose: str) -> None:
    """Import the user's modules, such as those with the classes of a stored model.

    Args:
        modules: names on the Python path.
        purpose: what needs them, for the message.

    Raises:
        ConfigError: a module cannot be imported.
    """
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # the module's own code runs
            raise ConfigError(
                f"{purpose} needs the module {name!r}, which can't be imported: {_reason(error)}. "
                "Run the command from the folder that holds it, or put that folder on PYTHONPATH."
            ) from error


def call(setting: str, reference: str, function: Any, **arguments: Any) -> Any:
    """Call the result of ``import_callable``.

    Raises:
        ConfigError: the call fails.
    """
    try:
        return function(**arguments)
    except QatlineError:
        raise
    except Exception as error:  # the user's own code
        raise ConfigError(f"{setting}: {reference!r} failed: {_reason(error)}.") from error


def check_options(
    setting: str,
    reference: str,
    function: Any,
    options: Mapping[str, Any],
    *,
    given: Iterable[str] = (),
    positional: int = 0,
) -> None:
    """Check that a function or class takes the options, without calling it.

    Options of ``**kwargs`` are known for classes of Keras only, which refuse or ignore others.

    Args:
        setting: key of the config, for the message.
        reference: name of the function, for the message.
        function: the function or class.
        options: keyword arguments.
        given: names of further keyword arguments that it receives if it has them.
        positional: number of positional arguments that it receives.

    Raises:
        ConfigError: it has no such option, or needs another one.
    """
    try:
        accepted = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return
    named = {
        one.name: one.default is one.empty
        for one in accepted[positional:]
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    is_of_keras = getattr(function, "__module__", "").startswith("keras.")
    takes_any = any(one.kind is one.VAR_KEYWORD for one in accepted) and not is_of_keras
    for name in options:
        if name not in named and not takes_any:
            near = difflib.get_close_matches(name, named, n=1)
            hint = (
                f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(named) or 'none'}."
            )
            raise ConfigError(f"{setting}: {reference!r} has no option {name!r}. {hint}")
    for name, is_needed in named.items():
        if is_needed and name not in options and name not in given:
            raise ConfigError(
                f"{setting}: {reference!r} needs the option {name!r}, received "
                f"{', '.join(options) or 'none'}"
            )


def call_with(
    setting: str,
    reference: str,
    function: Any,
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    any_keyword: bool = False,
) -> Any:
    """Call a function with its parameters from ``given``, and with all ``options``.

    Args:
        setting: key of the config, for the message.
        reference: name of the function, for the message.
        function: the function or class.
        given: optional arguments, passed if the function has such parameters.
        options: required arguments, with priority over ``given``.
        any_keyword: whether a function with ``**kwargs`` receives all of ``given``.

    Raises:
        ConfigError: the call fails.
    """
    try:
        accepted = inspect.signature(function).parameters
    except ValueError:  # a builtin without a signature
        accepted = MappingProxyType({})
    takes_all = any_keyword and any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in accepted.values()
    )
    arguments = dict(options)
    for name, value in given.items():
        if takes_all or name in accepted:
            arguments.setdefault(name, value)
    return call(setting, reference, function, **arguments)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {describe_error(error)}"
