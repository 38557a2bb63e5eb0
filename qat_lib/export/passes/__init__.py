"""Lowering passes: one per file, each a pure function on models.

Each pass is also an attribute of this package, by the name of its function;
``qat_lib.export.options.PASSES`` is their execution order.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qat_lib.export.options import PASSES, Pass


def _load(each: Pass) -> Any:
    module, function = each.path.split(".")
    return getattr(import_module(f"{__name__}.{module}"), function)


# All at once: a later import of a submodule would replace a function of the same name.
globals().update({each.function: _load(each) for each in PASSES})
