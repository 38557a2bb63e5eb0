"""Deployments: what follows from backend and CPU."""

from __future__ import annotations

from typing import Any

import pytest

import qat_lib
from qat_lib.core.deployment import Deployment
from qat_lib.engines import choose_backend, cpu_kind


def test_on_resolves_auto_for_this_machine() -> None:
    place = Deployment.on()
    assert place.backend == choose_backend("auto")
    assert place.cpu == (None if place.backend == "tensorrt" else cpu_kind())


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("cpu", ["avx2", "vnni", "arm"])
def test_on_keeps_what_is_given(backend: Any, cpu: Any) -> None:
    assert Deployment.on(backend, cpu) == Deployment(backend=backend, cpu=cpu)
    assert Deployment.on(backend, cpu).unsigned


def test_on_needs_no_cpu_for_tensorrt() -> None:
    place = Deployment.on("tensorrt", "avx2")
    assert place == Deployment(backend="tensorrt")
    assert not place.unsigned


def test_recipe_plans_for_its_deployment() -> None:
    import keras

    x = keras.Input((8, 8, 5))
    y = keras.layers.Conv2D(8, 3, activation="relu", name="a")(x)
    model = keras.Model(x, keras.layers.Conv2D(4, 3, name="b")(y))
    plan = qat_lib.PtqRecipe(backend="openvino", cpu="avx2").plan(model)
    assert plan.cpu == "avx2"
    assert [entry.pair_axis for entry in plan.by_kind("weight")] == [-2, -2]
    assert any(entry.unsigned for entry in plan.by_kind("activation"))
    plan = qat_lib.PtqRecipe(backend="tensorrt").plan(model)
    assert plan.cpu is None
    assert not any(entry.unsigned for entry in plan.by_kind("activation"))
