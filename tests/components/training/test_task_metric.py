"""The primary metric of a task, as a metric of the library."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import qat_lib
from qat_lib.errors import DataError
from qat_lib.support.extras import missing_packages
from qatline.components.training.task_metric import TaskMetric

CLASSES = 3


def segmenter(framework: str) -> tuple[Any, tuple[int, ...]]:
    """Return a network with a value per class and pixel, and the shape of a batch for it."""
    if framework == "keras":
        x = keras.Input((4, 6, 2))
        return keras.Model(x, keras.layers.Conv2D(CLASSES, 1, name="logits")(x)), (5, 4, 6, 2)
    if missing_packages(["torch"]):
        pytest.skip("needs qatline[torch]")
    from torch import nn

    return nn.Conv2d(2, CLASSES, 1), (5, 2, 4, 6)


@pytest.mark.parametrize("framework", ["keras", "torch"])
def test_metric_of_masks_is_the_mean_iou(framework: str) -> None:
    network, shape = segmenter(framework)
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=shape).astype(np.float32)
    masks = generator.integers(0, CLASSES, (5, 4, 6)).astype(np.uint8)
    metric = TaskMetric.of(network, inputs, masks, "segmentation")
    assert metric.__name__ == "mean_iou"
    perfect = np.eye(CLASSES, dtype=np.float32)[masks]
    if framework == "torch":
        perfect = np.moveaxis(perfect, -1, 1)
    assert metric([perfect], [perfect]) == pytest.approx(1.0)
    assert metric([np.zeros_like(perfect)], [perfect]) < 0.2
    assert metric([np.full_like(perfect, np.nan)], [perfect]) == 0.0


def test_metric_of_an_error_is_relative_to_the_float_model() -> None:
    x = keras.Input((2,))
    network = keras.Model(x, keras.layers.Dense(1)(x))
    targets = np.arange(8, dtype=np.float32) + 0.5
    metric = TaskMetric.of(network, np.ones((8, 2), np.float32), targets)
    reference = [targets[:, None] + 1.0]
    assert metric(reference, reference) == pytest.approx(1.0)
    assert metric([targets[:, None] + 1.25], reference) == pytest.approx(0.75)


def test_metric_refuses_targets_of_another_task() -> None:
    network, shape = segmenter("keras")
    with pytest.raises(DataError, match="targets"):
        TaskMetric.of(network, np.ones(shape, np.float32), np.ones(5), "segmentation")


@pytest.mark.matrix
def test_optimize_measures_the_metric_of_a_task(tmp_path: Any) -> None:
    network, shape = segmenter("keras")
    images = np.random.default_rng(0).normal(size=(64, *shape[1:])).astype(np.float32)
    masks = network.predict(images, verbose=0).argmax(-1).astype(np.uint8)
    metric = TaskMetric.of(network, images, masks)
    found = qat_lib.optimize(network, images, tmp_path, metric=metric, seconds=0.05)
    assert found.metric == "mean_iou"
    assert found.float_value == pytest.approx(1.0)
    assert 0.9 < found.value <= 1.0
