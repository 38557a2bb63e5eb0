import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import DataError
from qat_lib.preprocessing import Preprocessing, as_float32

CIFAR = Preprocessing(
    image_shape=(2, 2, 3), scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)


def test_apply_is_the_formula_in_float32() -> None:
    raw = np.random.default_rng(0).integers(0, 256, (5, 2, 2, 3), np.uint8)
    expected = (raw.astype(np.float64) / 255 - np.array(CIFAR.mean)) / np.array(CIFAR.std)
    out = CIFAR.apply(raw)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-6)


def test_apply_subtracts_partly_zero_mean() -> None:
    definition = Preprocessing(image_shape=(1, 1, 3), scale=1.0, mean=(0.0, 2.0, 0.0))
    assert definition.apply(np.full((1, 1, 1, 3), 5, np.uint8)).ravel().tolist() == [5.0, 3.0, 5.0]


def test_apply_divides_by_partly_unit_std() -> None:
    definition = Preprocessing(image_shape=(1, 1, 3), scale=1.0, std=(1.0, 2.0, 1.0))
    assert definition.apply(np.full((1, 1, 1, 3), 5, np.uint8)).ravel().tolist() == [5.0, 2.5, 5.0]


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float64, np.float32])
@pytest.mark.parametrize("shape", [(3, 5, 7), (1,)])
def test_as_float32_is_an_aligned_copy(kind: type, shape: tuple[int, ...]) -> None:
    given = np.arange(np.prod(shape)).astype(kind).reshape(shape)[..., ::-1]
    out = as_float32(given)
    np.testing.assert_array_equal(out, given)
    assert out.dtype == np.float32
    assert out.flags.c_contiguous
    assert out.ctypes.data % 64 == 0
    assert not np.shares_memory(out, given)


def test_apply_leaves_its_input_alone() -> None:
    raw = np.ones((1, 1, 1, 1), np.float32)
    definition = Preprocessing(image_shape=(1, 1, 1), dtype="float32", scale=3.0, mean=(1.0,))
    assert definition.apply(raw).item() == 2.0
    assert raw.item() == 1.0


def test_apply_does_not_depend_on_the_batch() -> None:
    raw = np.random.default_rng(1).integers(0, 256, (7, 2, 2, 3), np.uint8)
    whole = CIFAR.apply(raw)
    for index in range(7):
        np.testing.assert_array_equal(CIFAR.apply(raw[index : index + 1])[0], whole[index])


@pytest.mark.parametrize(
    "batch",
    [
        np.zeros((1, 2, 2, 1), np.uint8),
        np.zeros((2, 2, 3), np.uint8),
        np.zeros((1, 2, 2, 3), np.float32),
    ],
    ids=["channels", "no batch", "dtype"],
)
def test_apply_refuses_what_it_is_not_for(batch: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"expected uint8 \(batch, 2, 2, 3\), received"):
        CIFAR.apply(batch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": (0.1, 0.2)}, "mean: expected 1 or 3"),
        ({"std": (0.0,)}, "above zero"),
        ({"std": (float("nan"),)}, "std: expected 1 or 3 finite"),
        ({"scale": 0.0}, "above zero"),
        ({"scale": float("inf")}, "above zero"),
        ({"dtype": "int8"}, "uint8 or float32"),
        ({"image_shape": ()}, "image_shape"),
        ({"image_shape": (2, 0, 3)}, "image_shape"),
        ({"image_shape": (2, 2.5, 3)}, "image_shape"),
        ({"image_shape": (2, True, 3)}, "image_shape"),
        ({"image_shape": 7}, "image_shape"),
        ({"mean": ("0.1",)}, "mean: expected 1 or 3"),
        ({"mean": 0.5}, "mean: expected 1 or 3"),
        ({"std": (1e300,)}, "std: expected 1 or 3 finite"),
        ({"std": ([[1.0]],)}, "std: expected 1 or 3 finite"),
        ({"scale": [1.0]}, "above zero"),
        ({"scale": True}, "above zero"),
        ({"scale": -1.0}, "above zero"),
        ({"resize": 3}, "resize: expected text"),
        ({"color": None}, "color: expected text"),
    ],
)
def test_wrong_values_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Preprocessing(**{"image_shape": (2, 2, 3), **change})


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "preprocessing.json"
    CIFAR.save(path)
    assert Preprocessing.load(path) == CIFAR
    assert json.loads(path.read_text())["mean"] == [0.485, 0.456, 0.406]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", "[" * 9999, '{"image_shape": [1, 1, 1], "gamma": 2}', '{"image_shape": 3}'],
)
def test_a_broken_file_is_named_as_such(tmp_path: Path, text: str) -> None:
    path = tmp_path / "preprocessing.json"
    path.write_text(text)
    with pytest.raises(DataError):
        Preprocessing.load(path)


def test_save_and_load_take_text_paths(tmp_path: Path) -> None:
    definition = Preprocessing(image_shape=(2, 2, 3), mean=(0.5,))
    definition.save(str(tmp_path / "preprocessing.json"))
    assert Preprocessing.load(str(tmp_path / "preprocessing.json")) == definition
