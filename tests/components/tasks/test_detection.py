"""Detection: losses in both frameworks, decoder, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import ConfigError, DataError, UnsupportedModelError
from qatline.components.artifacts.data_info import InputInfo
from qatline.components.tasks import (
    Task,
    derive_task,
    make_task,
    shapes_of,
    task_for,
    task_of_model,
)

IMAGE = (48, 64)
SHAPES = {"fine": (6, 8, 6), "coarse": (3, 4, 6)}


def detection(**options: Any) -> Task:
    inputs = {"x": InputInfo(shape=(*IMAGE, 3), dtype="uint8")}
    return task_for("detection", classes=("a", "b"), inputs=inputs, options=options)


def random_batch(seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return targets of four images, the last one without boxes, and random maps."""
    generator = np.random.default_rng(seed)
    targets = np.full((4, 5, 6), [0, 0, 0, 0, -1, 0], np.float32)
    low = generator.uniform(0, 30, (3, 5, 2))
    targets[:3, :, :2], targets[:3, :, 2:4] = low, low + generator.uniform(0.5, 30, low.shape)
    targets[:3, :, 4] = generator.integers(-1, 2, (3, 5))
    targets[1, :2, 5] = 1
    maps = {name: generator.normal(size=(4, *shape)) for name, shape in SHAPES.items()}
    return targets, {name: values.astype(np.float32) for name, values in maps.items()}


@pytest.mark.parametrize("seed", range(4))
def test_losses_of_both_frameworks_are_equal(seed: int) -> None:
    torch = pytest.importorskip("torch")
    keras = pytest.importorskip("keras")
    targets, maps = random_batch(seed)
    ours = detection().keras_loss("", 0.0)(
        keras.ops.convert_to_tensor(targets),
        {name: keras.ops.convert_to_tensor(values) for name, values in maps.items()},
    )
    theirs = detection().torch_loss("", 0.0)(
        torch.from_numpy(targets), {name: torch.from_numpy(values) for name, values in maps.items()}
    )
    assert theirs.shape == (4,)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(ours), theirs.numpy(), rtol=2e-5)


def test_loss_falls_to_targets_that_decode_to_the_boxes() -> None:
    """Maps trained on their own loss find the boxes: loss, levels and decoder agree."""
    torch = pytest.importorskip("torch")
    targets = np.full((2, 3, 6), [0, 0, 1, 1, -1, 0], np.float32)
    targets[0, :3] = [[4, 4, 20, 24, 0, 0], [40, 8, 43, 10, 1, 0], [1, 1, 62, 46, 1, 0]]
    targets[1, 0] = [16, 16, 40, 40, 1, 0]
    task = detection()
    maps = {name: torch.zeros(2, *shape, requires_grad=True) for name, shape in SHAPES.items()}
    loss, optimizer = task.torch_loss("", 0.0), torch.optim.Adam(maps.values(), 0.1)
    for step in range(150):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 150)
        optimizer.zero_grad()
        lost = loss(torch.from_numpy(targets), maps).mean()
        lost.backward()
        optimizer.step()
    outputs = {name: values.detach().numpy() for name, values in maps.items()}
    assert task.summarize(task.measure(outputs, targets))["map"] > 0.95
    assert task.describe(outputs, 0) == task.describe_target(targets[0]) == "1 a, 2 b"
    found = task.decode(outputs)
    assert found.shape == (2, 100, 6)
    assert (found[..., :4] >= 0).all()
    assert (found[..., 2] <= 64).all()


def test_loss_ignores_locations_in_crowds() -> None:
    torch = pytest.importorskip("torch")
    targets, maps = random_batch()
    targets[...] = [0, 0, 64, 48, -1, 0]
    targets[0, 0] = [0, 0, 64, 48, 0, 1]
    maps = {name: torch.from_numpy(values) for name, values in maps.items()}
    found = detection().torch_loss("", 0.0)(torch.from_numpy(targets), maps)
    assert found[0] == 0
    assert (found[1:] > 0).all()


def test_decode_is_independent_of_the_order_of_maps() -> None:
    _, maps = random_batch()
    task = detection(max_detections=7, score_threshold=0.4)
    found, reordered = task.decode(maps), dict(reversed(maps.items()))
    np.testing.assert_array_equal(found, task.decode(reordered))
    assert not task.differences(maps, reordered).any()
    assert shapes_of(maps) == shapes_of(reordered)
    assert found.shape == (4, 7, 6)
    assert found[found[..., 5] >= 0][:, 4].min() >= 0.4


def test_mirrored_boxes_fit_mirrored_images() -> None:
    task = detection()
    height, width = IMAGE
    boxes = np.array([[[4, 2, 10, 20, 1, 0], [0, 0, width, height, 0, 1]]], np.float32)
    image = np.zeros((height, width))
    image[2:20, 4:10] = 1
    found = np.asarray(task.mirrored(boxes))
    x1, y1, x2, y2, *rest = found[0, 0].astype(int)
    assert image[:, ::-1][y1:y2, x1:x2].sum() == image.sum()
    assert rest == [1, 0]
    np.testing.assert_array_equal(found[0, 1], boxes[0, 1])


def test_a_class_without_boxes_is_not_measured() -> None:
    targets, maps = random_batch()
    targets[targets[..., 4] == 1, 4] = 0
    task = detection()
    groups = task.groups(task.measure(maps, targets))
    assert [(group.name, group.value is None) for group in groups] == [("a", False), ("b", True)]
    assert groups[0].samples == ((targets[..., 4] == 0) & (targets[..., 5] == 0)).sum()


def test_picture_has_a_panel_for_target_and_each_network() -> None:
    targets, maps = random_batch()
    image = np.random.default_rng(0).random((4, *IMAGE, 3)).astype(np.float32)
    picture = detection().picture(image, targets, [maps, maps], 0)
    assert picture is not None
    height, width = picture.shape[:2]
    assert (height, width) == (IMAGE[0] * 5, IMAGE[1] * 5 * 3)
    panels = np.split(picture, 3, axis=1)
    assert (panels[1] == panels[2]).all()
    assert (panels[0] != panels[1]).any()


def test_task_of_a_model_takes_classes_and_image_from_shapes() -> None:
    targets, maps = random_batch()
    task, _ = task_of_model(SHAPES, targets, "net", inputs=(*IMAGE, 3))
    np.testing.assert_array_equal(task.decode(maps), detection().decode(maps))


def test_targets_of_boxes_are_a_detection() -> None:
    assert derive_task(random_batch()[0]) == "detection"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({2: 1.0}, "x1 < x2"),
        ({3: np.nan}, "nan"),
        ({4: 2}, "a class from 0 to 1"),
        ({4: 0.5}, "for box 2 of sample 1"),
        ({5: 3}, "crowd 0 or 1"),
    ],
)
def test_wrong_targets_are_named(change: dict[int, float], problem: str) -> None:
    targets = np.full((2, 3, 6), [1, 1, 9, 9, 0, 0], np.float32)
    for column, value in change.items():
        targets[1, 2, column] = value
    with pytest.raises(DataError, match=re.escape(problem)):
        detection().check_targets(targets, "train targets")


def test_targets_of_another_shape_are_refused() -> None:
    with pytest.raises(DataError, match=r"received float64 \(2, 5\)"):
        detection().check_targets(np.zeros((2, 5)), "train targets")


@pytest.mark.parametrize(
    "shapes",
    [
        {"fine": (6, 8, 5)},
        {"fine": (6, 8, 6), "other": (6, 8, 6)},
        {"fine": (6,)},
        {"fine": (96, 128, 6)},
        {"fine": (None, 8, 6)},
    ],
)
def test_outputs_must_be_maps_of_locations(shapes: dict[str, Any]) -> None:
    detection().check_outputs(SHAPES, "net")
    with pytest.raises(UnsupportedModelError, match=r"'net' gives outputs .* maps \(rows"):
        detection().check_outputs(shapes, "net")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"score_threshold": 0}, "0 < score_threshold < 1, received 0"),
        ({"iou_threshold": 1.0}, "0 < iou_threshold < 1, received 1.0"),
        ({"max_detections": 0}, "max_detections >= 1, received 0"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_task("detection", options)
