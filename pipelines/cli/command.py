"""Decorators of commands: errors become messages, and one parameter becomes several options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from qatline.pipelines.cli.errors import reported
from qatline.pipelines.cli.options import ConfigOption, DebugOption, ProfileOption, SetOption

if TYPE_CHECKING:
    from qatline.pipelines.config.run_config import RunConfig

Command = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class ConfigChoice:
    """The options that choose a config: a YAML file, its profiles, and ``section.key=value``."""

    config: Path | None = None
    profile: Sequence[str] | None = None
    set_: Sequence[str] | None = None

    def overridden(self, *texts: str) -> ConfigChoice:
        """Return the choice with further ``key=value`` texts, which win."""
        return replace(self, set_=[*(self.set_ or ()), *texts])

    def seeded(self, seed: int | None) -> ConfigChoice:
        """Return the choice with a seed, if one is given."""
        return self if seed is None else self.overridden(f"seed={seed}")

    def arguments(self) -> list[str]:
        """Return the options as a command line has them, from any folder."""
        file = [] if self.config is None else ["--config", str(self.config.absolute())]
        profiles = [word for name in self.profile or () for word in ("--profile", name)]
        return [*file, *profiles, *(word for text in self.set_ or () for word in ("--set", text))]

    def load(self, runs_dir: Path | None = None) -> RunConfig:
        """Return the config.

        Args:
            runs_dir: Folder of the runs. Default: that of the config.

        Raises:
            ConfigError: A key is unknown or a value is wrong.
        """
        from qatline.pipelines.config.run_config import load_config

        return load_config(
            self.config, profiles=self.profile or (), overrides=self.set_ or (), runs_dir=runs_dir
        )

    @property
    def names_values(self) -> bool:
        """Whether anything but the folder of the runs is chosen."""
        others = (text for text in self.set_ or () if not text.startswith("output="))
        return self.config is not None or bool(self.profile) or any(others)


DEFAULT_CONFIG = ConfigChoice()


def option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """Return a parameter that typer turns into an option."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


_CONFIG = (
    option("config", ConfigOption),
    option("profile", ProfileOption),
    option("set_", SetOption),
)
_DEBUG = option("debug", DebugOption, False)


def command(function: Command) -> Command:
    """Add ``--debug``, and report errors.

    A parameter ``choice`` becomes the options of a ``ConfigChoice``. With ``json_``, errors are
    JSON, too.
    """
    function = with_options(function, "choice", _CONFIG, ConfigChoice)

    @functools.wraps(function)
    def reporting(*, debug: bool, **values: Any) -> None:
        with reported(debug=debug, as_json=values.get("json_", False)):
            function(**values)

    return _declare(reporting, [*inspect.signature(function).parameters.values(), _DEBUG])


def with_options(
    function: Command, name: str, options: Sequence[inspect.Parameter], make: Callable[..., Any]
) -> Command:
    """Replace a command's parameter by options.

    Args:
        function: the command.
        name: the parameter.
        options: what stands in its place.
        make: makes the parameter's value from those of the options.
    """

    @functools.wraps(function)
    def expanded(**values: Any) -> None:
        if name in hints:
            values[name] = make(**{each.name: values.pop(each.name) for each in options})
        function(**values)

    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        replaced = [parameter.replace(annotation=hints[parameter.name])]
        parameters += options if parameter.name == name else replaced
    return _declare(expanded, parameters)


def _declare(function: Command, parameters: Sequence[inspect.Parameter]) -> Command:
    """Give a function the signature and the annotations that typer reads."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters}
    return function
