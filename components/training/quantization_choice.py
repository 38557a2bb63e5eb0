"""From the quantization settings to what ``quantize_model`` takes.

The spec and the custom Q/DQ cases.
"""

from __future__ import annotations

import difflib
from typing import Any

import qat_lib
from qat_lib.core.spec import QuantizationSpec
from qat_lib.errors import ConfigError
from qatline.components.settings import QuantizationSettings
from qatline.components.support.user_code import call, import_callable


def read_spec(settings: QuantizationSettings) -> QuantizationSpec | None:
    """Return the spec that the settings hold or name, or None.

    Raises:
        SpecError: it is wrong.
    """
    if settings.spec is None:
        return None
    if isinstance(settings.spec, str):
        return QuantizationSpec.from_yaml(settings.spec)
    return QuantizationSpec.from_list(settings.spec)


def open_cases(settings: QuantizationSettings) -> list[Any]:
    """Return the custom Q/DQ cases that the settings name, made without arguments.

    Raises:
        ConfigError: there is no such case.
    """
    return [_open_case(name) for name in settings.cases]


def known_cases() -> list[str]:
    """Return the library's own cases by name, without importing Keras."""
    return [name for name in qat_lib.__all__ if name.endswith("QDQCase")]


def check_case_name(name: str) -> None:
    """Check that a case is the library's own or ``module:Class``.

    Nothing is imported.

    Raises:
        ConfigError: it is neither; the nearest name is given.
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
    raise ConfigError(f"quantization.cases: there is no case {name!r}.{hint}")


def _open_case(name: str) -> Any:
    check_case_name(name)
    if ":" not in name:
        return getattr(qat_lib, name)()
    return call("quantization.cases", name, import_callable("quantization.cases", name))
