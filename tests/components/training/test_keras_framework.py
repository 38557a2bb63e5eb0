"""Keras models with classes of the user: saved by one step, loaded by the next."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import keras
import pytest

from qat_lib.errors import ConfigError, UnsupportedModelError
from qatline.components.artifacts import Baseline
from qatline.components.tasks import task_for
from qatline.components.training.keras_framework import KerasFramework

MODULE = """
import keras

@keras.saving.register_keras_serializable("own_networks")
class Own(keras.Model):
    def train_step(self, data):
        return super().train_step(data)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model of a class in a module of the working directory."""
    (tmp_path / "own_networks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    x = keras.Input((3,))
    yield importlib.import_module("own_networks").Own(x, keras.layers.Dense(2)(x))
    forget()


def forget() -> None:
    sys.modules.pop("own_networks", None)
    keras.saving.get_custom_objects().pop("own_networks>Own", None)


def test_model_keeps_its_class(own: Any, tmp_path: Path) -> None:
    folder = Baseline(tmp_path)
    KerasFramework().save(own, folder)
    assert list(folder.modules()) == ["own_networks"]
    forget()
    assert type(KerasFramework().load(folder)).__name__ == "Own"
    forget()
    (tmp_path / "own_networks.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match=r"model.keras needs the module 'own_networks', which"):
        KerasFramework().load(folder)


def test_other_models_need_no_module(tmp_path: Path) -> None:
    x = keras.Input((3,))
    KerasFramework().save(keras.Model(x, keras.layers.Dense(2)(x)), Baseline(tmp_path))
    assert not Baseline(tmp_path).has(Baseline.MODULES)


def test_class_must_be_registered(own: Any) -> None:
    task = task_for("classification", classes=["0", "1"])
    KerasFramework().check_model(own, (3,), task)
    keras.saving.get_custom_objects().pop("own_networks>Own")
    with pytest.raises(UnsupportedModelError, match="contains the class Own, which Keras cannot"):
        KerasFramework().check_model(own, (3,), task)
