"""Weights from files: Keras's own .weights.h5, and .npz files with PyTorch names and layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from qat_lib.errors import ConfigError
from qat_lib.files.archives import check_unpacked, open_archive
from qat_lib.files.hdf5 import stored_bytes
from qat_lib.files.keras_archive import inspect_archive, read_npz_headers
from qat_lib.files.regular_files import open_regular
from qat_lib.foreign_errors import describe_error

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
        ConfigError: the file is missing, damaged, asks for more memory than is allowed (see
            ``qat_lib.load_model``), or does not fit the model.
    """
    file = Path(path)
    if file.suffix not in _SUFFIXES:
        raise ConfigError(
            f"Expected a weights file (.weights.h5, .keras or .npz). Received: {str(file)!r}."
        )
    try:
        if file.suffix == ".npz":
            _assign(model, _read_npz(file))
        else:
            _check(file)
            model.load_weights(file)
    except ConfigError:
        raise
    except FileNotFoundError as error:
        raise ConfigError(f"There is no weights file {str(file)!r}.") from error
    except OSError as error:
        raise ConfigError(
            f"The weights file {str(file)!r} can't be read: {error.strerror or error}."
        ) from error
    except Exception as error:  # Keras raises many kinds for a file of another model
        raise ConfigError(
            f"The weights file {str(file)!r} does not fit the model {model.name!r}: {describe_error(error)}."
        ) from error


def _check(file: Path) -> None:
    if file.suffix == ".keras":
        inspect_archive(file)
        return
    with open_regular(file) as stream:
        asked = stored_bytes(stream)
    check_unpacked(asked, file.stat().st_size)


def _read_npz(file: Path) -> dict[str, np.ndarray]:
    with open_regular(file) as stream, open_archive(stream) as archive:
        read_npz_headers(archive)
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}


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
    left = [key for key in arrays if key not in used and not key.endswith("num_batches_tracked")]
    if left:
        raise ConfigError(
            f"The weights hold {left[0]!r} and {len(left) - 1} more that fit no layer of {model.name!r}."
        )


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
    if name == "weight" and array.ndim == 4:
        depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)
        return array.transpose((2, 3, 0, 1) if depthwise else (2, 3, 1, 0))
    return array.T if name == "weight" and array.ndim == 2 else array
