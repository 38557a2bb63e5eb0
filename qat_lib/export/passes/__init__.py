"""The lowering passes: one per file, each a pure function on models.

A pass is an attribute of this package by the name of its function, too;
``qat_lib.export.options.PASSES`` is the sequence in which an export runs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qat_lib.export.options import PASSES, Pass


def _load(each: Pass) -> Any:
    module, function = each.path.split(".")
    return getattr(import_module(f"{__name__}.{module}"), function)


# At once: a file that is imported later would take the place of a function of the same name.
globals().update({each.function: _load(each) for each in PASSES})
