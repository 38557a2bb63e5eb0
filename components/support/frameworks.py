"""Features of each framework, available without importing it; and a shorter import of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from qat_lib.options import Framework

Feature: TypeAlias = Literal[
    "adaround", "diagnosis", "equalization", "keras callbacks", "model files", "workers"
]


@dataclass(frozen=True, kw_only=True)
class FrameworkTraits:
    """Title, packages and features of a framework.

    Attributes:
        title: name in messages.
        optimizer_arguments: arguments that the class or function of an optimizer gets.
        packages: versions of additional packages by name.
        unneeded: installed packages that it would import, for parts that are not used here.
        features: optional features; ``"model files"``: models and weights in its own file formats.
    """

    title: str
    optimizer_arguments: tuple[str, ...]
    packages: Mapping[str, str] = field(default_factory=dict)
    unneeded: tuple[str, ...] = ()
    features: frozenset[Feature] = frozenset()

    def supports(self, feature: Feature) -> bool:
        """Return whether the framework has a feature."""
        return feature in self.features


FRAMEWORKS: Mapping[str, FrameworkTraits] = {
    "keras": FrameworkTraits(
        title="Keras",
        optimizer_arguments=("learning_rate",),
        # For plots, data frames as arguments of ``fit``, and the wrappers of scikit-learn.
        unneeded=("matplotlib", "pandas", "sklearn"),
        features=frozenset(get_args(Feature)),
    ),
    "torch": FrameworkTraits(
        title="PyTorch",
        optimizer_arguments=("params", "lr"),
        packages={"torch": ">=2.9,<3", "onnxscript": ">=0.5,<1"},
    ),
}
"""Traits by framework (``qat_lib.options.Framework``)."""


def import_framework(name: Framework) -> None:
    """Import a framework without its unneeded packages: a third of the time of Keras.

    Other modules can import these afterwards. The parts of the framework that use them remain
    unavailable in this process.
    """
    unneeded = FRAMEWORKS[name].unneeded
    if name in sys.modules or not unneeded:
        return
    hidden = [package for package in unneeded if package not in sys.modules]
    for package in hidden:
        sys.modules[package] = None  # type: ignore[assignment]  # ``import`` raises ImportError
    try:
        importlib.import_module(name)
    finally:
        for package in hidden:
            del sys.modules[package]
