"""Conversion of the quantization settings to arguments of ``quantize_model``.

The arguments are the spec and the custom Q/DQ cases.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import qat_lib
from qat_lib.core.spec import QuantizationSpec
from qat_lib.errors import ConfigError
from qatline.components.settings import QuantizationSettings
from qatline.components.support.user_code import call, import_callable
from qatline.components.tasks.task import Task


def read_spec(settings: QuantizationSettings) -> QuantizationSpec | None:
    """Return the spec that the settings contain or name, or None.

    Raises:
        SpecError: the spec is wrong.
    """
    if settings.spec is None:
        return None
    if isinstance(settings.spec, str):
        return QuantizationSpec.from_yaml(settings.spec)
    return QuantizationSpec.from_list(settings.spec)


def open_cases(settings: QuantizationSettings, task: Task | None = None) -> list[Any]:
    """Return the custom Q/DQ cases of the settings.

    Args:
        settings: names of the cases; ``float_outputs`` is passed to library cases that take it.
        task: decides if ``float_outputs`` is ``auto``; None for quantized outputs.

    Raises:
        ConfigError: a case does not exist.
    """
    chosen = settings.float_outputs
    is_float = chosen == "always" or (chosen == "auto" and task is not None and task.float_outputs)
    return [open_case(name, float_outputs=is_float) for name in settings.cases]


def known_cases() -> list[str]:
    """Return the library's own cases by name, without importing Keras."""
    return [name for name in qat_lib.__all__ if name.endswith("QDQCase")]


def check_case_name(name: str) -> None:
    """Check that a case is a library case or ``module:Class``, without importing it.

    Raises:
        ConfigError: it is neither; the message suggests the nearest name.
    """
    module, colon, class_name = name.partition(":")
    if name in known_cases() or (
        colon and all(part.isidentifier() for part in (*module.split("."), class_name))
    ):
        return
    near = difflib.get_close_matches(name, known_cases(), n=1)
    hint = (
        f" Did you mean {near[0]}?"
        if near
        else f" Known: {', '.join(known_cases())}, or module:Class."
    )
    raise ConfigError(f"quantization.cases: unknown case {name!r}.{hint}")


def open_case(name: str, *, float_outputs: bool = False) -> Any:
    """Return one custom Q/DQ case; ``float_outputs`` is passed to a library case that takes it.

    Raises:
        ConfigError: it does not exist, or can't be created.
    """
    check_case_name(name)
    if ":" in name:
        return call("quantization.cases", name, import_callable("quantization.cases", name))
    case = getattr(qat_lib, name)
    takes = "float_outputs" in inspect.signature(case).parameters
    return case(float_outputs=float_outputs) if takes else case()
