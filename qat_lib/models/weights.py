"""Weights from files: Keras's own .weights.h5, and .npz files with PyTorch names and layouts."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from qat_lib.errors import ConfigError


def load_weights(model: Any, path: str | Path) -> None:
    """Load weights into a model, in place.

    Args:
        model: a built model.
        path: a ``.weights.h5`` or ``.keras`` file, or a ``.npz`` file with PyTorch names
            (``layer1.0.conv1.weight``, ``bn1.running_mean``, ...) and layouts, for networks whose layer names follow
            them (``layer1_0_1_conv``, ``bn1``, ...), such as ``resnet20_cifar10``.

    Raises:
        ConfigError: the file is missing, damaged, or does not fit the model.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"There is no weights file {str(file)!r}.")
    try:
        if file.suffix == ".npz":
            with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                _assign(model, {key: arrays[key] for key in arrays.files})
        else:
            model.load_weights(file)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"The weights file {str(file)!r} does not fit the model {model.name!r}: {error}.") from error


def _assign(model: Any, arrays: dict[str, np.ndarray]) -> None:
    used = set()
    for layer in model.layers:
        if not layer.variables:
            continue
        prefix = _torch_name(layer.name)
        names = _torch_weights(layer)
        values = []
        for name in names:
            key = f"{prefix}.{name}"
            if key not in arrays:
                raise ConfigError(f"The weights lack {key!r}, which the layer {layer.name!r} needs.")
            used.add(key)
            values.append(_keras_layout(layer, name, arrays[key]))
        layer.set_weights(values)
    left = [key for key in arrays if key not in used and not key.endswith("num_batches_tracked")]
    if left:
        raise ConfigError(f"The weights hold {left[0]!r} and {len(left) - 1} more that fit no layer of {model.name!r}.")


def _torch_name(name: str) -> str:
    """``layer1_0_2_bn`` -> ``layer1.0.bn2``; ``conv1``, ``bn1`` and ``linear`` stay."""
    parts = name.split("_")
    if len(parts) == 4:
        return f"{parts[0]}.{parts[1]}.{parts[3]}{parts[2]}"
    return name


def _torch_weights(layer: Any) -> list[str]:
    if isinstance(layer, keras.layers.BatchNormalization):
        return ["weight", "bias", "running_mean", "running_var"]
    return ["weight", "bias"] if layer.use_bias else ["weight"]


def _keras_layout(layer: Any, name: str, array: np.ndarray) -> np.ndarray:
    if name == "weight" and array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    return array.T if name == "weight" and array.ndim == 2 else array
