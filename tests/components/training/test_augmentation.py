"""Augmentation by default, and by a function of the user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import ConfigError
from qatline.components.artifacts.data_info import InputInfo
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.tasks import task_for
from qatline.components.training import fitting
from qatline.components.training.augmentation import augment_digest, chosen_augment, open_augment
from qatline.components.workers.workers import Workers
from tests.components.training.linear import DATA, X, train
from tests.components.training.test_user_callbacks import BOTH

SEEN: list[Any] = []


def swap(inputs: Any, targets: Any, *, by: float = 1.0) -> Any:
    return -by * inputs, 1 - targets


def noisy(inputs: Any, targets: Any, seed: Any) -> Any:
    import tensorflow as tf

    return inputs + tf.random.stateless_normal(tf.shape(inputs), seed), targets


def watched(inputs: Any, targets: Any, seed: Any) -> Any:
    SEEN.append((inputs, targets, seed))
    return inputs, targets


def alone(inputs: Any, targets: Any) -> Any:
    return inputs


def longer(inputs: Any, targets: Any) -> Any:
    return inputs[:, :, :, :2], targets


def failing(inputs: Any, targets: Any) -> Any:
    raise RuntimeError("no")


def task(name: str, *shapes: tuple[int, ...]) -> Any:
    found = task_for(name, classes=["0", "1"], target_shape=(8, 8) if "seg" in name else ())
    inputs = {f"x{i}": InputInfo(shape=shape, dtype="float32") for i, shape in enumerate(shapes)}
    found.data = replace(found.data, inputs=inputs)
    return found


def own(name: str, **options: Any) -> TrainingSettings:
    code = {"name": f"{__name__}:{name}", "options": options}
    return TrainingSettings(epochs=2, batch_size=8, augment=code)


def batches(settings: TrainingSettings) -> list[Any]:
    return list(fitting._batches(DATA, settings, 3, Workers()).as_numpy_iterator())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (task("classification", (8, 8, 1)), "shift"),
        (task("multilabel", (8, 8, 3)), "shift"),
        (task("classification", (8,)), "none"),
        (task("classification", (8, 3)), "none"),
        (task("classification", (8, 8, 1), (3,)), "none"),
        (task("regression", (8, 8, 1)), "none"),
        (task("segmentation", (8, 8, 1)), "none"),
    ],
)
def test_default_depends_on_data_and_task(given: Any, expected: str) -> None:
    assert chosen_augment(TrainingSettings(), given) == expected
    assert chosen_augment(QATSettings(), given) == "none"


def test_targets_must_follow_a_built_in_augmentation() -> None:
    with pytest.raises(
        ConfigError, match=r"qat.augment: expected none, flip or module:function for"
    ):
        open_augment(QATSettings(augment="flip_crop"), task("segmentation", (8, 8, 1)))


def test_function_changes_inputs_and_targets() -> None:
    plain, changed = batches(TrainingSettings(batch_size=8)), batches(own("swap", by=2.0))
    for (x, y), (other_x, other_y) in zip(plain, changed, strict=True):
        np.testing.assert_array_equal(other_x, -2 * x)
        np.testing.assert_array_equal(other_y, 1 - y)


def test_function_gets_a_seed_for_each_batch() -> None:
    first, again = (np.concatenate([x for x, _ in batches(own("noisy"))]) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    plain = np.concatenate([x for x, _ in batches(TrainingSettings(batch_size=8))])
    noise = (first - plain).reshape(25, -1)
    assert len(np.unique(noise.round(4), axis=0)) == 25


def test_function_gets_arrays_in_pytorch() -> None:
    pytest.importorskip("torch")
    SEEN.clear()
    train("torch", own("watched"))
    assert len(SEEN) == 8
    inputs, targets, seed = SEEN[0]
    assert (inputs.shape, targets.dtype, seed.shape) == ((8, *X.shape[1:]), np.int64, (2,))
    assert len({tuple(each[2].tolist()) for each in SEEN}) == 8


@pytest.mark.parametrize("framework", BOTH)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("alone", r"training.augment: '.*:alone' returned a .*, expected \(inputs, targets\)"),
        ("longer", r"returned inputs float32 \(.*, 1, 1, 2\), expected float32 \(.*, 1, 1, 3\)"),
        ("failing", r"'.*:failing' failed: RuntimeError: no"),
        ("swop", r"'.*:swop' can't be imported"),
    ],
)
def test_wrong_function_is_named(framework: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(framework, own(name))


def test_digest_is_that_of_the_users_code() -> None:
    assert augment_digest(TrainingSettings()) == augment_digest(QATSettings(augment="shift")) == ""
    assert len(augment_digest(TrainingSettings(augment="run_page:main"))) == 64
