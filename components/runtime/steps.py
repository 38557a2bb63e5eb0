"""Declaration of a step by the signature of its function.

Positional ``Path`` parameters are input directories, ``out`` is the output directory, and
keyword-only parameters annotated with a settings section receive that section. The signature is the
only declaration and cannot disagree with the code. Sections annotated with ``CHECKED`` are not part
of the result's key.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from qat_lib.errors import ConfigError, StepError
from qatline.components.settings import Settings
from qatline.components.settings.config_values import restore_integers
from qatline.components.step_table import STEP_BY_NAME

CHECKED = "checked"
"""Marks a section that a step validates, without effect on its result:
``Annotated[QuantizationSettings, CHECKED]``."""


@dataclass(frozen=True, kw_only=True)
class StepDefinition:
    """A step as declared by its function's signature."""

    name: str
    function: Callable[..., Mapping[str, float]]
    inputs: tuple[str, ...]
    optional_inputs: frozenset[str]
    sections: Mapping[str, type[Settings]]
    checked: frozenset[str]
    takes_seed: bool
    takes_checkpoints: bool = False
    reduce: Callable[[Mapping[str, Any]], Mapping[str, Settings]] = dict
    state: Callable[[Mapping[str, Settings]], Mapping[str, str]] = lambda _: {}

    @property
    def keyed(self) -> tuple[str, ...]:
        """Sections in the result's key."""
        return tuple(name for name in self.sections if name not in self.checked)

    def parse(self, settings: Mapping[str, Any]) -> dict[str, Settings]:
        """Validate the step's sections; missing sections have their defaults.

        Each section is reduced to the values that affect the result. Validated sections are not
        validated again.

        Raises:
            ConfigError: a value is wrong, or the step does not read a given section.
        """
        if unknown := sorted(set(settings) - set(self.sections)):
            raise ConfigError(
                f"step {self.name} reads the sections {sorted(self.sections)}; received also "
                f"{unknown}"
            )
        parsed = {}
        for name, section in self.sections.items():
            given = settings.get(name) or {}
            try:
                parsed[name] = (
                    given
                    if isinstance(given, section)
                    # KFP passes all numbers as floats: integers must be restored before validation.
                    else section.model_validate(restore_integers(given))
                )
            except ValueError as error:
                raise ConfigError(
                    f"section {name} of step {self.name} is wrong: {error}"
                ) from error
        return dict(self.reduce(parsed))

    def check_inputs(self, inputs: Mapping[str, str]) -> dict[str, Path]:
        """Return the input directories by parameter name.

        Raises:
            StepError: an input is missing or unknown.
        """
        given = {name: Path(path) for name, path in inputs.items() if path}
        missing = set(self.inputs) - set(given) - self.optional_inputs
        if missing or not set(given) <= set(self.inputs):
            raise StepError(
                f"step {self.name} expects the inputs {list(self.inputs)}, received {sorted(given)}"
            )
        return given


def load_step(name: str) -> StepDefinition:
    """Import the step's module and read the declaration of its function.

    Raises:
        StepError: the step does not exist, or its function does not follow the conventions.
    """
    if name not in STEP_BY_NAME:
        raise StepError(f"expected a step out of {', '.join(STEP_BY_NAME)}; received {name!r}")
    module = importlib.import_module(f"qatline.components.steps.{name}")
    step = define_step(name, getattr(module, f"{name}_step"))
    reduce = getattr(module, f"{name}_settings", step.reduce)
    return replace(step, reduce=reduce, state=getattr(module, f"{name}_state", step.state))


def define_step(name: str, function: Callable[..., Mapping[str, float]]) -> StepDefinition:
    """Read the declaration of a step from its function's signature.

    Raises:
        StepError: a parameter is not an input ``Path``, ``out``, a section, ``seed``, ``progress``
            or ``checkpoints``.
    """
    inputs, optional, sections, checked, known = [], set(), {}, set(), set()
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if get_origin(kind) is Annotated and CHECKED in get_args(kind):
            checked.add(parameter.name)
            kind = get_args(kind)[0]
        if parameter.name in ("out", "seed", "progress", "checkpoints"):
            known.add(parameter.name)
        elif isinstance(kind, type) and issubclass(kind, Settings):
            sections[parameter.name] = kind
        elif kind in (Path, Path | None):
            inputs.append(parameter.name)
            if parameter.default is not inspect.Parameter.empty:
                optional.add(parameter.name)
        else:
            raise StepError(
                f"step {name}: parameter {parameter.name} is no input, no section, nor out, seed, "
                "progress, checkpoints"
            )
    if not {"out", "progress"} <= known:
        raise StepError(f"step {name} must take out and progress")
    return StepDefinition(
        name=name,
        function=function,
        inputs=tuple(inputs),
        optional_inputs=frozenset(optional),
        sections=sections,
        checked=frozenset(checked),
        takes_seed="seed" in known,
        takes_checkpoints="checkpoints" in known,
    )
