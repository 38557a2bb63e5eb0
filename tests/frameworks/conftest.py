"""Keras and PyTorch behind one interface, for tests of their shared behaviour."""

import importlib
from typing import Any

import pytest


@pytest.fixture(params=["keras", "torch"])
def framework(request: pytest.FixtureRequest) -> Any:
    """The module ``keras_framework`` or ``torch_framework``."""
    pytest.importorskip(request.param)
    return importlib.import_module(f"{request.param}_framework")
