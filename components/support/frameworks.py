"""Features of each framework, available without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

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
        features: optional features; ``"model files"``: models and weights in its own file formats.
    """

    title: str
    optimizer_arguments: tuple[str, ...]
    packages: Mapping[str, str] = field(default_factory=dict)
    features: frozenset[Feature] = frozenset()

    def supports(self, feature: Feature) -> bool:
        """Return whether the framework has a feature."""
        return feature in self.features


FRAMEWORKS: Mapping[str, FrameworkTraits] = {
    "keras": FrameworkTraits(
        title="Keras",
        optimizer_arguments=("learning_rate",),
        features=frozenset(get_args(Feature)),
    ),
    "torch": FrameworkTraits(
        title="PyTorch",
        optimizer_arguments=("params", "lr"),
        packages={"torch": ">=2.9,<3", "onnxscript": ">=0.5,<1"},
    ),
}
"""Traits by framework (``qat_lib.options.Framework``)."""
