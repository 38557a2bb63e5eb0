"""Backends: one module per name, complete for the common code."""

from __future__ import annotations

import importlib
from typing import get_args

import pytest

from qat_lib.engines.backend import EngineBackend, get_backend
from qat_lib.errors import ConfigError
from qat_lib.options import Backend

BACKENDS = get_args(Backend)
MEMBERS = ("supports", "version", "device", "float_precisions", "build", "refusal", "open")


@pytest.mark.parametrize("name", BACKENDS)
def test_get_backend(name: str) -> None:
    backend = get_backend(name)
    assert type(backend) is importlib.import_module(f"qat_lib.engines.{name}").BACKEND
    assert {*MEMBERS, *EngineBackend.__annotations__} <= set(dir(backend))
    assert backend.device_keys["name"] is str
    assert backend.rebuilds is (name != "tensorrt")
    assert backend.supports("unsigned") is backend.supports("cpu") is (name != "tensorrt")
    assert backend.supports("typed_graphs") is (name == "tensorrt")


@pytest.mark.parametrize("name", ["spec", "backend", "", "auto"])
def test_get_backend_refuses_other_names(name: str) -> None:
    with pytest.raises(ConfigError, match="The backends are tensorrt, openvino, onnxruntime"):
        get_backend(name)


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_device_has_its_keys(name: str) -> None:
    backend = get_backend(name)
    device = backend.device()
    assert all(isinstance(device[key], kind) for key, kind in backend.device_keys.items())
