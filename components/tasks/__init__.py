"""Tasks: meaning, training, scores and comparison of a network's outputs.

Only this package interprets outputs and targets; the steps, the gate and the report ask it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from qat_lib.errors import ConfigError
from qatline.components.artifacts.data_info import DatasetInfo, InputInfo
from qatline.components.artifacts.metric import Metric
from qatline.components.support.user_code import call, import_callable
from qatline.components.tasks.classification import Classification
from qatline.components.tasks.derive import derive_task
from qatline.components.tasks.detection import Detection
from qatline.components.tasks.multilabel import MultiLabel
from qatline.components.tasks.regression import Regression
from qatline.components.tasks.segmentation import Segmentation
from qatline.components.tasks.task import (
    Group,
    Outputs,
    Samples,
    Task,
    check_numbers,
    holds_nan,
    joined,
    rows_of,
    samples_of,
    shapes_of,
    shown_image,
)

__all__ = [
    "TASKS",
    "Group",
    "Metric",
    "Outputs",
    "Samples",
    "Task",
    "check_numbers",
    "derive_task",
    "holds_nan",
    "joined",
    "make_task",
    "open_task",
    "rows_of",
    "samples_of",
    "shapes_of",
    "shown_image",
    "task_for",
    "task_of_model",
]

TASKS: Mapping[str, type[Task]] = {
    kind.name: kind for kind in (Classification, MultiLabel, Regression, Segmentation, Detection)
}
"""Built-in tasks by name."""


def make_task(name: str, options: Mapping[str, Any]) -> Task:
    """Return a task, not yet attached to a data set.

    Args:
        name: a built-in task, or ``module:Class``, a subclass of ``Task``.
        options: keyword arguments of the task.

    Raises:
        ConfigError: the task does not exist, or refuses the options.
    """
    if ":" in name:
        kind = import_callable("task.name", name)
    elif name in TASKS:
        kind = TASKS[name]
    else:
        raise ConfigError(
            f"task.name: expected {', '.join(TASKS)} or module:Class; received {name!r}"
        )
    task = call("task.name", name, kind, **options)
    if not isinstance(task, Task):
        raise ConfigError(
            f"task.name: {name!r} is a {type(task).__name__}, expected a subclass of "
            "qatline.components.tasks.Task."
        )
    return task


def task_for(
    name: str,
    *,
    classes: Sequence[str] = (),
    target_shape: Sequence[int] = (),
    inputs: Mapping[str, InputInfo] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Task:
    """Return a task for data that are not a prepared data set.

    Args:
        name: a built-in task, or ``module:Class``.
        classes: class names in label order.
        target_shape: shape of one sample's target.
        inputs: inputs by name; detection takes the size of its image from them.
        options: keyword arguments of the task.

    Raises:
        ConfigError: the task does not exist, or refuses the options.
    """
    task = make_task(name, options or {})
    task.data = DatasetInfo(
        kind="arrays",
        classes=tuple(classes),
        inputs=dict(inputs or {}),
        splits={},
        fingerprint="",
        source="",
        task=name,
        target_shape=tuple(target_shape),
    )
    return task


def task_of_model(
    shapes: Mapping[str, Sequence[int | None]],
    targets: NDArray[Any],
    model: str,
    name: str | None = None,
    *,
    inputs: Sequence[int] | Mapping[str, Sequence[int]] = (),
) -> tuple[Task, NDArray[Any]]:
    """Return the task of a network on data that are not a prepared data set, and its targets.

    Classes are named by their indices.

    Args:
        shapes: shape of a sample of each output of the network.
        targets: targets as read, ``(samples, ...)``.
        model: name of the network, for messages.
        name: a built-in task, or ``module:Class``. Default: derived from the targets.
        inputs: shape of a sample of the only input, or of each of several by name.

    Raises:
        ConfigError: the task does not exist.
        DataError: the targets do not fit the task.
        UnsupportedModelError: the network does not fit it.
    """
    if name is None:
        sizes = [shape[-1] for shape in shapes.values() if shape]
        name = derive_task(targets, sizes[0] or 1 if len(sizes) == 1 else 1)
    classes = [str(index) for index in range(make_task(name, {}).classes_of(shapes, model))]
    given = inputs if isinstance(inputs, Mapping) else {"x": inputs}
    infos = {key: InputInfo(shape=tuple(each), dtype="float32") for key, each in given.items()}
    task = task_for(name, classes=classes, target_shape=targets.shape[1:], inputs=infos)
    checked = task.check_targets(targets, "targets")
    task = task_for(name, classes=classes, target_shape=checked.shape[1:], inputs=infos)
    task.check_outputs(shapes, model)
    return task, checked


def open_task(data: DatasetInfo) -> Task:
    """Return the task of a prepared data set, attached to its description.

    Raises:
        ConfigError: the task's code cannot be imported here.
    """
    task = make_task(data.task, data.task_options)
    task.data = data
    return task
