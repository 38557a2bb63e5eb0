"""The lowering passes: one file each, each a pure function from model to model.

A pass is an attribute of this package by the name of its function, too;
:data:`qat_lib.export.options.STEPS` is the sequence in which an export runs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qat_lib.export.options import STEPS, Step


def _load(step: Step) -> Any:
    module, function = step.path.split(".")
    return getattr(import_module(f"{__name__}.{module}"), function)


# At once: a file that is imported later would take the place of a function of the same name.
globals().update({step.function: _load(step) for step in STEPS})
