"""From the quantization settings to what ``quantize_model`` takes: the spec and the custom Q/DQ cases."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from components.settings import QuantizationSettings
from qat_lib.errors import ConfigError
from qat_lib.spec import QuantizationSpec


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


def _open_case(name: str) -> Any:
    from qat_lib import custom_qdq_cases

    if ":" not in name:
        if name not in custom_qdq_cases.__all__ or not name.endswith("Case"):
            known = [case for case in custom_qdq_cases.__all__ if case.endswith("QDQCase")]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" Known: {', '.join(known)}, or module:Class."
            raise ConfigError(f"quantization.cases: there is no case {name!r}.{hint}")
        return getattr(custom_qdq_cases, name)()
    module_name, _, class_name = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), class_name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"quantization.cases: {name!r} can't be made: {error}. Expected module:Class on the Python path, "
            "with a constructor that needs no arguments."
        ) from error
