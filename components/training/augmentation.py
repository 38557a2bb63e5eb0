"""Augmentation of a training's batches: built in, or a function of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from qat_lib.errors import ConfigError
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.settings.code_settings import name_and_options
from qatline.components.store.fingerprints import user_code_digest
from qatline.components.support.training_options import Code
from qatline.components.support.user_code import call_with, import_callable
from qatline.components.tasks.task import Task

_DEFAULT = "shift"

UserAugment = Callable[[Any, Any, Any], tuple[Any, Any]]
"""Function of inputs, targets and a seed (two integers)."""


def chosen_augment(schedule: TrainingSettings | QATSettings, task: Task) -> Code:
    """Return the augmentation of a training.

    Default: that of the task for images, ``none`` for other data and for fine-tuning.

    Raises:
        ConfigError: the targets do not fit the augmented inputs.
    """
    key = f"{schedule.section}.augment"
    if schedule.augment is None:
        shapes = task.data.shapes
        is_image = not isinstance(shapes, Mapping) and len(shapes) == 3
        moves = isinstance(schedule, TrainingSettings) and is_image
        return _DEFAULT if moves and _DEFAULT in task.augmentations else "none"
    name, _ = name_and_options(schedule.augment)
    if ":" not in name and name not in task.augmentations:
        raise ConfigError(
            f"{key}: expected {', '.join(task.augmentations)} or module:function for the task "
            f"{task.data.task}; received {name!r}, which would change inputs without their targets"
        )
    return schedule.augment


def augment_digest(schedule: TrainingSettings | QATSettings) -> str:
    """Return the digest of the user's code of an augmentation; empty for a built-in one."""
    return user_code_digest(name_and_options(schedule.augment or "none")[0])


def open_augment(schedule: TrainingSettings | QATSettings, task: Task) -> str | UserAugment:
    """Return the name of a built-in augmentation, or the user's function.

    Raises:
        ConfigError: the function cannot be imported, or the targets do not fit.
    """
    code = chosen_augment(schedule, task)
    name, options = name_and_options(code)
    if ":" not in name:
        return name
    key = f"{schedule.section}.augment"
    function = import_callable(key, name)

    def augment(x: Any, y: Any, seed: Any) -> tuple[Any, Any]:
        found = call_with(key, name, partial(function, x, y), {"seed": seed}, options)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ConfigError(
                f"{key}: {name!r} returned a {type(found).__name__}, expected (inputs, targets)"
            )
        _check_same(f"{key}: {name!r}", "inputs", x, found[0])
        _check_same(f"{key}: {name!r}", "targets", y, found[1])
        return found

    return augment


class NumpyAugmented:
    """Restartable NumPy batches, changed by the user's function.

    Args:
        dataset: ``tf.data.Dataset`` of inputs, targets, seed and possibly weights.
        augment: the function.
    """

    def __init__(self, dataset: Any, augment: UserAugment) -> None:
        self._dataset, self._augment = dataset, augment

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        # Not a generator function: the order of an epoch is drawn when its iterator is created.
        return (
            (*self._augment(*batch[:3]), *batch[3:]) for batch in self._dataset.as_numpy_iterator()
        )


def _check_same(where: str, what: str, given: Any, found: Any) -> None:
    """Compare names, types and known shapes of arrays or tensors."""
    if isinstance(given, Mapping):
        if not isinstance(found, Mapping) or set(found) != set(given):
            raise ConfigError(f"{where} returned other {what} than {', '.join(given)}")
        for name, each in given.items():
            _check_same(where, f"{what} {name}", each, found[name])
        return
    expected, received = _description(given), _description(found)
    if expected[0] != received[0] or not _fits(expected[1], received[1]):
        raise ConfigError(
            f"{where} returned {what} {received[0]} {received[1]}, expected {expected[0]} "
            f"{expected[1]}"
        )


def _description(value: Any) -> tuple[str, tuple[int | None, ...] | None]:
    shape = getattr(value, "shape", None)
    rank = getattr(shape, "rank", -1)
    dtype = getattr(value, "dtype", type(value).__name__)
    known = None if shape is None or rank is None else tuple(shape)
    return str(getattr(dtype, "name", dtype)), known


def _fits(expected: tuple[int | None, ...] | None, received: tuple[int | None, ...] | None) -> bool:
    """Return whether shapes can be equal; None is an unknown length or rank."""
    if expected is None or received is None:
        return True
    return len(expected) == len(received) and all(
        a is None or b is None or a == b for a, b in zip(expected, received, strict=True)
    )
