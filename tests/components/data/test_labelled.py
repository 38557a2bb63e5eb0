from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qat_lib.errors import DataError
from qatline.components.data.labelled import TEST_PAIRS, AsFloat, read_labelled, read_training

X = np.arange(40, dtype=np.float64).reshape(10, 4)
Y = np.arange(10) % 2


def save(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def test_read_labelled_prefers_the_test_part(tmp_path: Path) -> None:
    path = save(tmp_path, x=X, y=Y, x_test=X[:3], y_test=Y[:3])
    found = read_labelled(path, None, tmp_path, TEST_PAIRS)
    np.testing.assert_array_equal(found.x, X[:3])
    assert found.targets.dtype == Y.dtype
    np.testing.assert_array_equal(found.inputs(np.array([2, 0])), X[[2, 0]])


def test_read_labelled_never_takes_a_training_part(tmp_path: Path) -> None:
    path = save(tmp_path, x_train=X, y_train=Y)
    with pytest.raises(DataError, match=r"expected arrays named x_test and y_test, .* x and y"):
        read_labelled(path, None, tmp_path, TEST_PAIRS)


def test_read_labelled_of_two_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y[:, None])
    found = read_labelled(tmp_path / "x.npy", tmp_path / "y.npy", tmp_path, TEST_PAIRS)
    np.testing.assert_array_equal(found.targets, Y[:, None])
    assert found.input_shape == (4,)


def test_read_labelled_of_several_inputs(tmp_path: Path) -> None:
    path = save(tmp_path, x_test_left=X, x_test_right=X[:, :2], y_test=Y * 0.5)
    found = read_labelled(path, None, tmp_path, TEST_PAIRS)
    assert found.input_shape == {"left": (4,), "right": (2,)}
    np.testing.assert_array_equal(found.inputs(slice(2, 4))["right"], X[2:4, :2])
    np.testing.assert_array_equal(found.targets, Y * 0.5)


def test_read_training_splits_several_inputs_alike(tmp_path: Path) -> None:
    path = save(tmp_path, x_train_left=X, x_train_right=X + 1, y_train=X[:, :1])
    training, validating = read_training(path, None, tmp_path, seed=0)
    assert (len(training.targets), len(validating.targets)) == (8, 2)
    for part in (training, validating):
        assert isinstance(part.x, dict)
        np.testing.assert_array_equal(part.x["left"] + 1, part.x["right"])
        np.testing.assert_array_equal(part.x["left"][:, :1], part.targets)


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        ("none.npz", None, "does not exist"),
        ("x.npy", None, "Expected --labels with"),
        ("data.npz", "y.npy", "Expected no --labels with"),
        ("x.npy", "none.npy", "none.npy can't be read"),
        ("x.npy", "few.npy", "10 inputs but 3 labels"),
        ("y.npy", "y.npy", r"expected inputs \(samples, ...\)"),
        ("empty.npy", "y.npy", "at least one sample"),
        ("text.npz", None, "expected an .npz file"),
    ],
)
def test_read_labelled_says_what_is_wrong(
    tmp_path: Path, data: str, labels: str | None, message: str
) -> None:
    save(tmp_path, x=X, y=Y)
    for name, array in {"x": X, "y": Y, "few": Y[:3], "empty": X[:0]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "text.npz").write_text("x")
    beside = None if labels is None else tmp_path / labels
    with pytest.raises(DataError, match=message):
        read_labelled(tmp_path / data, beside, tmp_path, TEST_PAIRS)


def test_read_training_uses_stored_validation_part(tmp_path: Path) -> None:
    path = save(tmp_path, x_train=X, y_train=Y, x_val=X[:2], y_val=Y[:2])
    training, validating = read_training(path, None, tmp_path, seed=0)
    assert (len(training.targets), len(validating.targets)) == (10, 2)


def test_read_training_holds_a_fifth_out_by_class(tmp_path: Path) -> None:
    path = save(tmp_path, x=X, y=Y)
    training, validating = read_training(path, None, tmp_path, seed=0)
    assert sorted(validating.targets) == [0, 1]
    together = np.concatenate([training.x, validating.x])
    assert len(training.x) == 8
    np.testing.assert_array_equal(np.sort(together[:, 0]), X[:, 0])
    _, again = read_training(path, None, tmp_path, seed=0)
    np.testing.assert_array_equal(again.x, validating.x)
    others = [read_training(path, None, tmp_path, seed=seed)[1].x[0, 0] for seed in range(8)]
    assert len(set(others)) > 1


def test_read_training_needs_two_samples(tmp_path: Path) -> None:
    training, validating = read_training(save(tmp_path, x=X[:2], y=Y[:2]), None, tmp_path, seed=0)
    assert (len(training.targets), len(validating.targets)) == (1, 1)
    with pytest.raises(DataError, match="expected at least 2 samples"):
        read_training(save(tmp_path, x=X[:1], y=Y[:1]), None, tmp_path, seed=0)


def test_as_float_changes_nothing_but_the_type() -> None:
    applied = AsFloat(image_shape=(4,)).apply(X[:2])
    assert applied.dtype == np.float32
    np.testing.assert_array_equal(applied, X[:2])
    named = AsFloat(image_shape={"a": (4,)}).apply({"a": X[:2]})
    assert named["a"].dtype == np.float32
