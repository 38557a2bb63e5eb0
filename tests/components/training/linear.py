"""A linear classifier of two classes in both frameworks, with its data."""

from __future__ import annotations

from typing import Any

import numpy as np

from qatline.components.data.labelled import Labelled
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.support.events import NullProgress
from qatline.components.tasks import task_for
from qatline.components.training.array_data import ArrayData
from qatline.components.training.framework import choose_framework

X = np.random.default_rng(0).normal(size=(37, 1, 1, 3)).astype(np.float32)
Y = (X.sum(axis=(1, 2, 3)) > 0).astype(np.int64)
DATA = ArrayData(
    training=Labelled(x=X[:25], targets=Y[:25]),
    validating=Labelled(x=X[25:], targets=Y[25:]),
    task=task_for("classification", classes=["no", "yes"]),
)
KERNEL = np.float32([[0.3, -0.2], [-0.5, 0.4], [0.1, 0.2]])


def linear(framework: str) -> Any:
    """Return the classifier with the weights ``KERNEL``."""
    if framework == "keras":
        import keras

        x = keras.Input((1, 1, 3))
        dense = keras.layers.Dense(2)
        model = keras.Model(x, dense(keras.layers.Flatten()(x)))
        dense.set_weights([KERNEL, np.zeros(2, np.float32)])
        return model
    import torch

    from qatline.components.artifacts.models import TorchRecipe
    from qatline.components.training.torch_network import TorchNetwork

    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(KERNEL.T.copy()))
        layer.bias.zero_()
    recipe = TorchRecipe(name="x:y", options={}, image_shape=(1, 1, 3), classes=2)
    return TorchNetwork(module=torch.nn.Sequential(torch.nn.Flatten(), layer), recipe=recipe)


def kernel_of(model: Any) -> np.ndarray:
    """Return the weights of the classifier."""
    if hasattr(model, "get_weights"):
        return np.asarray(model.get_weights()[0])
    return model.module[1].weight.detach().numpy().T.copy()  # type: ignore[no-any-return]


def train(
    framework: str,
    settings: TrainingSettings | QATSettings,
    model: Any = None,
    data: ArrayData = DATA,
    **options: Any,
) -> tuple[Any, list[Any]]:
    """Train the classifier; return it with its history."""
    chosen = choose_framework(framework)  # type: ignore[arg-type]
    chosen.make_deterministic(0)
    model = linear(framework) if model is None else model
    given = {"seed": 0, "progress": NullProgress(), **options}
    return model, chosen.fit(model, data, settings, **given)
