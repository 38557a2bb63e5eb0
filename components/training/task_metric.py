"""The primary metric of a task as a metric of ``qat_lib.optimize`` and ``qat_lib.search``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qat_lib.graph.reading import is_module
from qatline.components.tasks import Task, holds_nan, task_of_model
from qatline.components.training.model_source import output_shapes


class TaskMetric:
    """Primary metric of a task on a part of the data; greater is better.

    Shares such as accuracy are used as they are. The value of other metrics is 1 minus the loss as
    a share of the float model's value.

    Args:
        task: the task.
        targets: targets of the measured samples, as the task takes them.
        names: names of the model's outputs.
        channels_first: whether the channels of the outputs are their second axis, as in PyTorch.
    """

    def __init__(
        self,
        task: Task,
        targets: NDArray[Any],
        names: Sequence[str],
        *,
        channels_first: bool = False,
    ) -> None:
        self.task, self.targets, self._names = task, targets, tuple(names)
        self._channels_first = channels_first
        self.__name__ = task.primary.name

    @classmethod
    def of(
        cls, model: Any, inputs: Any, targets: NDArray[Any], task: str | None = None
    ) -> TaskMetric:
        """Return the metric of a model's task.

        Args:
            model: a Keras model, or a PyTorch module.
            inputs: inputs to measure on, ``(samples, ...)``, as the model takes them; several by
                name.
            targets: their targets, ``(samples, ...)``.
            task: a built-in task, or ``module:Class``. Default: derived from the targets.

        Raises:
            ConfigError: the task does not exist.
            DataError: the targets do not fit the task.
            UnsupportedModelError: the model does not fit the task.

        Examples:
            >>> import keras, numpy as np
            >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            >>> metric = TaskMetric.of(model, np.ones((8, 4), "float32"), np.ones(8, "float32"))
            >>> metric.task.primary.title
            'MAE'
        """
        channels_first = is_module(model)
        shapes = _outputs_of_module(model, inputs) if channels_first else output_shapes(model)
        name = str(getattr(model, "name", type(model).__name__))
        samples = _sample_shapes(inputs, channels_first)
        found, checked = task_of_model(shapes, targets, name, task, inputs=samples)
        return cls(found, checked, list(shapes), channels_first=channels_first)

    @property
    def float_outputs(self) -> bool:
        """Whether the output layers stay in float by default; see ``PtqRecipe.for_metric``."""
        return self.task.float_outputs

    def __repr__(self) -> str:  # identifies the metric in a journal
        targets = hashlib.sha256(self.targets.tobytes()).hexdigest()
        return f"{self.task.data.task} {self.__name__} {targets}"

    def __call__(self, outputs: Sequence[Any], reference: Sequence[Any]) -> float:
        metric, value = self.task.primary, self._value(outputs)
        if metric.share or value is None:
            return value or 0.0
        best = self._value(reference)
        return 0.0 if best is None else 1.0 - metric.loss(value, best) / max(abs(best), 1e-12)

    def _value(self, outputs: Sequence[Any]) -> float | None:
        """Return the metric; None for outputs with NaN."""
        if self._channels_first:
            outputs = [np.moveaxis(x, 1, -1) if x.ndim > 2 else x for x in outputs]
        named: Any = dict(zip(self._names, outputs, strict=True))
        found = named if len(named) > 1 else outputs[0]
        if holds_nan(found):
            return None
        measured = self.task.measure(found, self.targets)
        return self.task.summarize(measured)[self.__name__]


def _outputs_of_module(module: Any, inputs: Any) -> dict[str, tuple[int | None, ...]]:
    """Return the shape of a sample of each output of a PyTorch module, with channels last."""
    import torch

    from qat_lib.torch.inference import in_inference
    from qatline.components.training.torch_network import torch_outputs

    device = next((parameter.device for parameter in module.parameters()), None)

    def first(array: Any) -> Any:
        return torch.tensor(np.asarray(array[:2])).float().to(device)

    # In inference mode: batch norms in training mode would change their statistics.
    with in_inference(module), torch.no_grad():
        if isinstance(inputs, Mapping):
            found = module(**{name: first(x) for name, x in inputs.items()})
        else:
            found = module(first(inputs))
    outputs = torch_outputs(found)
    named = outputs if isinstance(outputs, Mapping) else {"output": outputs}
    return {name: tuple(x.shape[1:]) for name, x in named.items()}


def _sample_shapes(inputs: Any, channels_first: bool) -> Any:
    """Return the shape of a sample of an array, or of several by name, with channels last."""
    if isinstance(inputs, Mapping):
        return {name: _sample_shapes(x, channels_first) for name, x in inputs.items()}
    shape = tuple(inputs.shape[1:])
    return (*shape[1:], shape[0]) if channels_first and len(shape) > 1 else shape
