"""From the quantization settings to what ``quantize_model`` takes: the spec and the custom Q/DQ cases."""

from __future__ import annotations

import difflib
from typing import Any

from components.runtime.user_code import call, import_callable
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
    return call("quantization.cases", name, import_callable("quantization.cases", name))
