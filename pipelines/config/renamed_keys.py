"""Renamed config keys: the old name works for one release."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from qat_lib.errors import ConfigError

RENAMED = {("export", "remainder"): "float_precision"}
"""Section and old key -> new key of the same section."""

logger = logging.getLogger("qatline")


def with_new_keys(values: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the values with old keys renamed; log a warning for each.

    Raises:
        ConfigError: both names are given.
    """
    renamed = _with_auto(dict(values))
    for (section, old), new in RENAMED.items():
        content = renamed.get(section)
        if not isinstance(content, Mapping) or old not in content:
            continue
        if new in content:
            raise ConfigError(
                f"{source}: expected {section}.{new} alone. Received {section}.{old}, its old name, "
                f"as well. Remove {section}.{old}."
            )
        logger.warning(
            "%s: %s.%s is now %s.%s; the old name goes with the next release.",
            *(source, section, old, section, new),
        )
        renamed[section] = {new if key == old else key: value for key, value in content.items()}
    return renamed


def _with_auto(values: dict[str, Any]) -> dict[str, Any]:
    """Write ``qat: auto`` out: it is short for ``retrain.qat: auto``."""
    if values.get("qat") != "auto":
        return values
    retrain = values.get("retrain")
    content = dict(retrain) if isinstance(retrain, Mapping) else {}
    rest = {name: value for name, value in values.items() if name != "qat"}
    return {**rest, "retrain": {**content, "qat": "auto"}}
