"""Traits of each framework."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import tomllib

from qat_lib.options import Framework
from qatline.components.support.frameworks import FRAMEWORKS

ROOT = Path(__file__).parents[3]


def test_each_framework_has_traits() -> None:
    assert set(FRAMEWORKS) == set(get_args(Framework))
    assert FRAMEWORKS["keras"].supports("adaround")
    assert not FRAMEWORKS["torch"].supports("adaround")


def test_packages_are_those_of_the_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    wanted = {f"{name}{versions}" for name, versions in FRAMEWORKS["torch"].packages.items()}
    assert wanted <= set(extras["torch"])
