"""Which framework a name or a model's directory stands for."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from qat_lib.support.extras import missing_packages
from qatline.components.artifacts import Baseline
from qatline.components.training.framework import Framework, choose_framework, framework_of

NEEDS_TORCH = pytest.mark.skipif(
    bool(missing_packages(["torch", "onnxscript"])), reason="needs qatline[torch]"
)
BOTH = ["keras", pytest.param("torch", marks=NEEDS_TORCH)]


@pytest.mark.parametrize(("name", "title"), [("keras", "Keras"), ("torch", "PyTorch")])
def test_choose_framework_takes_its_name(name: str, title: str) -> None:
    if name == "torch" and missing_packages(["torch", "onnxscript"]):
        pytest.skip("needs qatline[torch]")
    assert choose_framework(name).traits.title == title  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BOTH)
def test_each_framework_has_all_that_steps_need(name: str) -> None:
    framework = choose_framework(name)  # type: ignore[arg-type]
    for method, declared in inspect.getmembers(Framework, inspect.isfunction):
        if method.startswith("_"):
            continue
        own = inspect.signature(getattr(framework, method)).parameters
        expected = list(inspect.signature(declared).parameters)[1:]
        rest = any(p.kind is p.VAR_KEYWORD for p in own.values())
        assert rest or list(own) == expected, method


@pytest.mark.parametrize(("file", "title"), [("model.keras", "Keras"), ("", "Keras")])
def test_framework_of_sees_the_models_file(tmp_path: Path, file: str, title: str) -> None:
    if file:
        (tmp_path / file).touch()
    assert framework_of(Baseline(tmp_path)).traits.title == title


@NEEDS_TORCH
def test_framework_of_sees_a_state(tmp_path: Path) -> None:
    (tmp_path / "model.pt").touch()
    assert framework_of(Baseline(tmp_path)).traits.title == "PyTorch"
    assert Baseline(tmp_path).model_file == tmp_path / "model.pt"
