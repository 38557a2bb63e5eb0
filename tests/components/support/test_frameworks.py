"""Traits of each framework."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
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


@pytest.mark.matrix
def test_unneeded_packages_are_imported_later() -> None:
    """In a process of its own: this one has imported Keras."""
    code = """
import sys
from qatline.components.support.frameworks import FRAMEWORKS, import_framework
unneeded = FRAMEWORKS["keras"].unneeded
import_framework("keras")
assert "keras" in sys.modules
assert not set(unneeded) & set(sys.modules), sorted(set(unneeded) & set(sys.modules))
import matplotlib, pandas, sklearn.metrics
import keras
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(loss="mse")
import numpy as np
model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0)
import_framework("keras")
assert all(sys.modules[name] is not None for name in unneeded)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
