"""Load weights from Keras's .weights.h5 files, and .npz files with PyTorch names and layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from qat_lib.errors import ConfigError
from qat_lib.files.archives import check_unpacked
from qat_lib.files.keras_archive import check_keras_archive, stored_bytes
from qat_lib.files.npy import unpack_arrays
from qat_lib.files.regular_files import open_regular
from qat_lib.models.weight_files import reading_weights, refuse_unused

_SUFFIXES = (".h5", ".keras", ".npz")


def load_weights(model: Any, path: str | Path) -> None:
    """Load weights into a model, in place.

    Args:
        model: a built model.
        path: a ``.weights.h5`` or ``.keras`` file, or a ``.npz`` file with PyTorch names
            (``layer1.0.conv1.weight``, ``bn1.running_mean``, ...) and layouts, for networks whose
            layer names follow them (``layer1_0_1_conv``, ``bn1``, ...), such as
            ``resnet20_cifar10`` and ``mobilenetv2_imagenet``.

    Raises:
        ConfigError: the file is missing, damaged, needs more memory than the limit (see
            ``qat_lib.load_model``), or does not fit the model.
    """
    file = Path(path)
    with reading_weights(file, _SUFFIXES, model.name):
        if file.suffix == ".npz":
            _assign(model, unpack_arrays(file))
        else:
            _check(file)
            model.load_weights(file)


def _check(file: Path) -> None:
    if file.suffix == ".keras":
        check_keras_archive(file)
        return
    with open_regular(file) as stream:
        asked = stored_bytes(stream)
    check_unpacked(asked, file.stat().st_size)


def _assign(model: Any, arrays: dict[str, np.ndarray]) -> None:
    used = set()
    for layer in model.layers:
        if not layer.weights:  # a Dropout has a variable, but no weight
            continue
        prefix = _torch_name(layer.name)
        names = _torch_weights(layer)
        values = []
        for name in names:
            key = f"{prefix}.{name}"
            if key not in arrays:
                raise ConfigError(
                    f"The weights lack {key!r}, which the layer {layer.name!r} needs."
                )
            used.add(key)
            values.append(_keras_layout(layer, name, arrays[key]))
        layer.set_weights(values)
    refuse_unused(arrays, used, model.name)


def _torch_name(name: str) -> str:
    """``layer1_0_2_bn`` -> ``layer1.0.bn2``; ``features_1_conv_2`` -> ``features.1.conv.2``."""
    parts = name.split("_")
    if len(parts) == 4 and parts[3].isalpha():
        return f"{parts[0]}.{parts[1]}.{parts[3]}{parts[2]}"
    return ".".join(parts)


def _torch_weights(layer: Any) -> list[str]:
    if isinstance(layer, keras.layers.BatchNormalization):
        return ["weight", "bias", "running_mean", "running_var"]
    return ["weight", "bias"] if layer.use_bias else ["weight"]


def _keras_layout(layer: Any, name: str, array: np.ndarray) -> np.ndarray:
    # PyTorch stores (out, in, h, w); Keras (h, w, in, out), or (h, w, channels, 1) if depthwise.
    if name == "weight" and array.ndim == 4:
        depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)
        return array.transpose((2, 3, 0, 1) if depthwise else (2, 3, 1, 0))
    return array.T if name == "weight" and array.ndim == 2 else array
