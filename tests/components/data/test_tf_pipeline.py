"""The ``tf.data`` reader: NumPy's numbers, same order for same seed."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import DataError
from qatline.components.data.labelled import AsFloat, Labelled
from qatline.components.data.reader import load_split, tf_dataset
from qatline.components.data.tf_pipeline import build_dataset
from qatline.components.runtime.failures import as_data_error
from qatline.components.settings import DataSettings
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.components.support.events import NullProgress

Epoch = tuple[np.ndarray, np.ndarray]


def epoch(dataset: Any) -> Epoch:
    batches = list(dataset.as_numpy_iterator())
    return np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])


def same(a: Epoch, b: Epoch) -> bool:
    return all(np.array_equal(left, right) for left, right in zip(a, b, strict=True))


def test_without_shuffling_it_is_the_split(digits_dataset: Path) -> None:
    dataset = tf_dataset(digits_dataset, "test", 50)
    assert same(epoch(dataset), load_split(digits_dataset, "test"))
    assert int(dataset.cardinality()) == 8
    assert [tuple(spec.shape) for spec in dataset.element_spec] == [(None, 8, 8, 1), (None,)]
    assert [spec.dtype.name for spec in dataset.element_spec] == ["float32", "int64"]


def test_shuffling_keeps_the_pairs(digits_dataset: Path) -> None:
    x, y = epoch(tf_dataset(digits_dataset, "test", 50, shuffle_seed=1))
    whole_x, whole_y = load_split(digits_dataset, "test")
    pairs = sorted((image.tobytes(), label) for image, label in zip(x, y, strict=True))
    assert pairs == sorted(
        (image.tobytes(), label) for image, label in zip(whole_x, whole_y, strict=True)
    )
    assert not np.array_equal(y, whole_y)


@pytest.mark.parametrize("augment", ["none", "shift", "flip", "flip_crop"])
def test_the_seed_decides_every_epoch(digits_dataset: Path, augment: str) -> None:
    def epochs(seed: int) -> list[Epoch]:
        dataset = tf_dataset(digits_dataset, "train", 64, shuffle_seed=seed, augment=augment)
        return [epoch(dataset) for _ in range(3)]

    first, again, other = epochs(5), epochs(5), epochs(6)
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert not same(first[0], other[0])
    assert not same(first[0], first[1])
    assert not same(first[1], first[2])


def test_augmentation_differs_from_epoch_to_epoch_without_shuffling(digits_dataset: Path) -> None:
    dataset = tf_dataset(digits_dataset, "test", 64, augment="shift")
    first, second = epoch(dataset), epoch(dataset)
    assert np.array_equal(first[1], second[1])
    assert not np.array_equal(first[0], second[0])


@pytest.fixture(scope="module")
def gradient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images whose pixels encode their position.

    The value is 16 * row + column, on 16 x 16.
    """
    folder = tmp_path_factory.mktemp("gradient")
    image = (16 * np.arange(16)[:, None] + np.arange(16)[None, :]).astype(np.uint8)
    np.savez(
        folder / "data.npz", x=np.repeat(image[None, ..., None], 400, axis=0), y=np.arange(400) % 2
    )
    out = folder / "out"
    out.mkdir()
    settings = {"kind": "npz", "path": str(folder / "data.npz"), "preprocessing": {"scale": 1.0}}
    prepare_data_step(
        out, data=DataSettings.model_validate(settings), seed=0, progress=NullProgress()
    )
    return out


def offsets(images: np.ndarray, *, mirrored: bool) -> set[tuple[int, int, bool]]:
    """Return each image's offset; fail on any other change."""
    rows, columns = np.meshgrid(np.arange(16), np.arange(16), indexing="ij")
    candidates = {}
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            moved = 16 * np.clip(rows + dy, 0, 15) + np.clip(columns + dx, 0, 15)
            candidates[moved.astype(np.float32).tobytes()] = (dy, dx, False)
            if mirrored:
                candidates[np.ascontiguousarray(moved[:, ::-1].astype(np.float32)).tobytes()] = (
                    dy,
                    dx,
                    True,
                )
    return {candidates[image.tobytes()] for image in images[..., 0]}


def test_shift_reaches_an_eighth_and_repeats_edge(gradient: Path) -> None:
    x, _ = epoch(tf_dataset(gradient, "train", 32, shuffle_seed=0, augment="shift"))
    found = offsets(x, mirrored=False)
    assert {dy for dy, _, _ in found} == {dx for _, dx, _ in found} == {-2, -1, 0, 1, 2}
    assert len(found) > 20


def test_flip_crop_mirrors_about_half(gradient: Path) -> None:
    x, _ = epoch(tf_dataset(gradient, "train", 32, shuffle_seed=0, augment="flip_crop"))
    assert {flipped for _, _, flipped in offsets(x, mirrored=True)} == {True, False}
    left_to_right = (np.diff(x[:, 8, 4:12, 0], axis=1) > 0).all(axis=1).mean()
    assert 0.35 < left_to_right < 0.65


@pytest.mark.parametrize("worker", [(0, 1), (0, 2), (1, 2)])
def test_flip_mirrors_targets_with_their_images(worker: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    x = generator.uniform(size=(64, 4, 6, 1)).astype(np.float32)
    split = Labelled(x=x, targets=np.arange(64), weights=None)
    images = build_dataset(
        split,
        AsFloat(image_shape=(4, 6, 1)),
        16,
        shuffle_seed=1,
        augment="flip",
        mirrored=lambda y: -y - 1,
        worker=worker,
    )
    seen = list(images.unbatch().as_numpy_iterator())
    assert len(seen) == 64 // worker[1]
    assert 0.2 < np.mean([label < 0 for _, label in seen]) < 0.8
    for image, label in seen:
        plain = image if label >= 0 else image[:, ::-1]
        np.testing.assert_array_equal(plain, x[label if label >= 0 else -label - 1])


@pytest.mark.parametrize("augment", ["none", "shift", "flip", lambda x, y, _: (x, y)])
def test_weights_follow_their_samples(augment: Any) -> None:
    values = np.arange(20, dtype=np.float32)
    x = np.broadcast_to(values[:, None, None, None], (20, 2, 2, 1))
    split = Labelled(x=x, targets=np.arange(20), weights=values / 2)
    form = AsFloat(image_shape=(2, 2, 1))
    given: Any = {"shuffle_seed": 1, "augment": augment}
    for worker in ((0, 1), (1, 2)):
        batches = build_dataset(split, form, 6, worker=worker, **given).as_numpy_iterator()
        for inputs, targets, weights in batches:
            np.testing.assert_array_equal(inputs[:, 0, 0, 0], 2 * weights)
            np.testing.assert_array_equal(targets, 2 * weights)


def test_repeat_goes_on(digits_dataset: Path) -> None:
    dataset = tf_dataset(digits_dataset, "test", 100, shuffle_seed=0, repeat=True)
    labels = np.concatenate([y for _, y in dataset.take(8).as_numpy_iterator()])
    assert len(labels) == 2 * 359
    assert not np.array_equal(labels[:359], labels[359:])


def test_an_unknown_augmentation_is_refused(digits_dataset: Path) -> None:
    with pytest.raises(
        DataError, match="expected one of none, shift, flip, flip_crop; received 'rotate'"
    ):
        tf_dataset(digits_dataset, "train", 8, augment="rotate")


def test_image_deleted_during_reading_is_named(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    root, out = image_folder(count=20), tmp_path / "out"
    out.mkdir()
    prepare_data_step(
        out, data=DataSettings(kind="folder", path=str(root)), seed=0, progress=NullProgress()
    )
    dataset = tf_dataset(out, "train", 4)
    for path in root.rglob("*.png"):
        path.unlink()
    with pytest.raises(Exception, match="DataError") as caught:
        epoch(dataset)
    error = as_data_error(caught.value)
    assert isinstance(error, DataError)
    assert re.fullmatch(r"the image .*\.png can't be read: No such file or directory", str(error))


def test_a_folder_streams_the_same_pixels(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    prepare_data_step(
        out,
        data=DataSettings(kind="folder", path=str(image_folder(count=20)), image_size=(5, 5)),
        seed=0,
        progress=NullProgress(),
    )
    assert same(epoch(tf_dataset(out, "train", 4)), load_split(out, "train"))
    x, _ = epoch(tf_dataset(out, "train", 4, shuffle_seed=3, augment="flip_crop"))
    assert x.shape[1:] == (5, 5, 3)
