"""Preprocessing: how raw data becomes the model's input.

Different preprocessing in training and inference is a common error without a message. Therefore one
value defines it: it is saved next to the model, and NumPy applies it everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qat_lib.errors import DataError
from qat_lib.files.text_files import read_json
from qat_lib.files.whole_files import write_text

FLOAT32_MAX = float(np.finfo(np.float32).max)
FloatBatch = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Preprocess raw images or other arrays in float32: ``(value * scale - mean) / std``.

    Args:
        image_shape: shape of one sample: ``(height, width, channels)`` of an image,
            ``(steps, channels)`` of a signal, ``(features,)`` of a vector. Channels are its last
            axis.
        dtype: data type of the raw values: ``uint8`` or ``float32``.
        scale: factor on raw values, > 0.
        mean: per channel, after the scale; one value serves all channels.
        std: per channel, after the scale, > 0; one value serves all channels.
        color: what the channels are: ``rgb``, ``gray`` or ``channels``.
        resize: how images of another size are brought to ``image_shape`` before this: ``bilinear``
            (Pillow, antialiased), or None when they must have that size.

    Raises:
        DataError: a value is out of its range, or ``mean`` or ``std`` does not fit the channels.

    Examples:
        >>> import numpy as np
        >>> p = Preprocessing(image_shape=(1, 1, 1), scale=1 / 255, mean=(0.5,), std=(0.5,))
        >>> p.apply(np.full((2, 1, 1, 1), 255, np.uint8)).ravel().tolist()
        [1.0, 1.0]
    """

    image_shape: tuple[int, ...]
    dtype: str = "uint8"
    scale: float = 1.0 / 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    color: str = "rgb"
    resize: str | None = None

    def __post_init__(self) -> None:
        """Check every value once."""
        shape = self.image_shape
        if not _all(int, shape) or not shape or min(shape) < 1:
            raise DataError(
                "image_shape: expected sizes of at least 1, such as (height, width, channels), "
                f"received {shape!r:.100}"
            )
        if self.dtype not in ("uint8", "float32"):
            raise DataError(
                f"dtype of raw data: expected uint8 or float32, received {self.dtype!r:.100}"
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not _all(float, values) or len(values) not in (1, shape[-1]):
                raise DataError(
                    f"{name}: expected 1 or {shape[-1]} finite values, received {values!r:.100}"
                )
        if not _all(float, (self.scale,)) or self.scale <= 0 or min(self.std) <= 0:
            raise DataError(
                f"scale and std must be above zero; received scale={self.scale!r:.100}, "
                f"std={self.std!r:.100}"
            )
        for name, text in (("color", self.color), ("resize", self.resize or "")):
            if not isinstance(text, str):
                raise DataError(f"{name}: expected text, received {text!r:.100}")

    def apply(self, batch: npt.NDArray[Any]) -> FloatBatch:
        """Return the model's input, a new float32 array ``(batch, *image_shape)``.

        Raises:
            DataError: the batch has another shape or data type than this definition is for.
        """
        if batch.shape[1:] != self.image_shape or batch.dtype.name != self.dtype:
            expected = f"{self.dtype} (batch, {', '.join(map(str, self.image_shape))})"
            raise DataError(
                f"raw data: expected {expected}, received {batch.dtype.name} {batch.shape}"
            )
        out = as_float32(batch)
        out *= np.float32(self.scale)
        if any(self.mean):
            out -= np.asarray(self.mean, np.float32)
        if any(value != 1.0 for value in self.std):
            out /= np.asarray(self.std, np.float32)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; ``from_dict`` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Preprocessing:
        """Read the JSON form.

        Raises:
            DataError: a key is missing or unknown, or a value is wrong.
        """
        known = {field.name for field in fields(cls)}
        if not isinstance(data, Mapping) or "image_shape" not in data or not set(data) <= known:
            received = sorted(map(repr, data)) if isinstance(data, Mapping) else type(data).__name__
            raise DataError(
                f"preprocessing: expected the keys {sorted(known)}, received {received}"
            )
        values: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list | tuple) else v for name, v in data.items()
        }
        return cls(**values)

    def save(self, path: str | Path) -> None:
        """Write the JSON form to ``path``, whole or not at all."""
        _save(self.to_dict(), path)

    @classmethod
    def load(cls, path: str | Path) -> Preprocessing:
        """Read what ``save`` wrote.

        Raises:
            DataError: the file does not exist, or contains something else.
        """
        return cls.from_dict(_load(path))


@dataclass(frozen=True, kw_only=True)
class PreprocessingByInput:
    """Preprocessing of a model with several inputs.

    Args:
        inputs: preprocessing of each input by its name.

    Examples:
        >>> import numpy as np
        >>> form = Preprocessing(image_shape=(2,), dtype="float32", scale=2.0)
        >>> both = PreprocessingByInput(inputs={"left": form, "right": form})
        >>> both.apply({name: np.ones((1, 2), np.float32) for name in both.inputs})["left"].tolist()
        [[2.0, 2.0]]
    """

    inputs: Mapping[str, Preprocessing]

    @property
    def image_shape(self) -> dict[str, tuple[int, ...]]:
        """Shape of a sample of each input."""
        return {name: form.image_shape for name, form in self.inputs.items()}

    def apply(self, batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, FloatBatch]:
        """Return the model's inputs by name.

        Raises:
            DataError: the batch has other inputs, shapes or data types.
        """
        if not isinstance(batch, Mapping) or set(batch) != set(self.inputs):
            received = ", ".join(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise DataError(
                f"raw data: expected the inputs {', '.join(self.inputs)}, received {received}"
            )
        found = {}
        for name, form in self.inputs.items():
            try:
                found[name] = form.apply(batch[name])
            except DataError as error:
                raise DataError(f"input {name!r}, {error}") from error
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; ``read_preprocessing`` reads it back."""
        return {"inputs": {name: form.to_dict() for name, form in self.inputs.items()}}

    def save(self, path: str | Path) -> None:
        """Write the JSON form to ``path``, whole or not at all."""
        _save(self.to_dict(), path)


AnyPreprocessing = Preprocessing | PreprocessingByInput
"""Preprocessing of a model with one input, or with several."""


def as_float32(batch: npt.NDArray[Any]) -> FloatBatch:
    """Return a float32 copy that begins at a multiple of 64 bytes.

    TensorFlow uses such an array as it is, and copies others.
    """
    room = np.empty(batch.size + 16, np.float32)
    start = -room.ctypes.data // 4 % 16
    out = room[start : start + batch.size].reshape(batch.shape)
    np.copyto(out, batch, casting="unsafe")
    return out


def read_preprocessing(data: Mapping[str, Any]) -> AnyPreprocessing:
    """Read the JSON form of a preprocessing of one input or several.

    Raises:
        DataError: a key is missing or unknown, or a value is wrong.
    """
    if not isinstance(data, Mapping) or set(data) != {"inputs"}:
        return Preprocessing.from_dict(data)
    inputs = data["inputs"]
    if not isinstance(inputs, Mapping) or not inputs:
        raise DataError(f"preprocessing: expected inputs by name, received {inputs!r:.100}")
    return PreprocessingByInput(
        inputs={str(name): Preprocessing.from_dict(each) for name, each in inputs.items()}
    )


def load_preprocessing(path: str | Path) -> AnyPreprocessing:
    """Read the file of a preprocessing of one input or several.

    Raises:
        DataError: the file does not exist, or contains something else.
    """
    return read_preprocessing(_load(path))


def _save(data: Mapping[str, Any], path: str | Path) -> None:
    write_text(path, json.dumps(data, indent=1) + "\n")


def _load(path: str | Path) -> dict[str, Any]:
    data = read_json(path, what="a preprocessing definition", error=DataError)
    if not isinstance(data, dict):
        raise DataError(f"{path}: expected a JSON object, received {type(data).__name__}")
    return data


def _all(kind: type, values: Any) -> bool:
    """Whether values are a tuple of integers or finite numbers.

    Integers if ``int`` is asked for, finite numbers if ``float``.
    """
    wanted = Integral if kind is int else Real
    if not isinstance(values, tuple | list) or any(
        isinstance(v, bool) or not isinstance(v, wanted) for v in values
    ):
        return False
    return all(abs(value) <= FLOAT32_MAX for value in values)  # false for NaN, too
