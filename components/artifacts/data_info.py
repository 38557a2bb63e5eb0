"""Description of a prepared data set, the content of ``dataset.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qat_lib.errors import DataError
from qat_lib.files.text_files import read_json

INFO_NAME = "dataset.json"
SPLITS = ("train", "calibration", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class InputInfo:
    """One input of a model: the shape of a sample, and the type of the raw data.

    Args:
        shape: shape of a sample, such as ``(height, width, channels)``.
        dtype: ``uint8`` or ``float32``.
    """

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """Description of a prepared data set.

    Args:
        kind: kind of the source, see ``data.kind``.
        classes: class names in label order; empty for targets other than classes.
        inputs: inputs by name. With several these are the names of the model's inputs; a single
            one may have any name.
        splits: number of samples of each part: train, calibration, validation, test.
        fingerprint: SHA-256 of the content of the whole source, without splits and seed.
        source: origin of the data, for display.
        root: image folder if the images remain in their files; None for arrays and shards.
        duplicates: number of samples outside the training part with inputs that also occur in it.
        task: built-in task or ``module:Class``; see ``qatline.components.tasks``.
        task_options: keyword arguments of the task.
        task_code: digest of the code of a ``module:Class``; empty for built-in tasks. Results that
            depend on this data set thereby depend on that code.
        target_shape: shape of one sample's target; () for a class index.
    """

    kind: str
    classes: tuple[str, ...]
    inputs: Mapping[str, InputInfo]
    splits: Mapping[str, int]
    fingerprint: str
    source: str
    root: str | None = None
    duplicates: int = 0
    task: str = "classification"
    task_options: Mapping[str, Any] = field(default_factory=dict)
    task_code: str = ""
    target_shape: tuple[int, ...] = ()

    @property
    def shapes(self) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
        """Shape of a sample of the only input, or of each of several by name."""
        if len(self.inputs) == 1:
            return self._only.shape
        return {name: each.shape for name, each in self.inputs.items()}

    @property
    def image_shape(self) -> tuple[Any, ...]:
        """Shape of a sample of the only input.

        Raises:
            DataError: there are several inputs.
        """
        return self._only.shape

    @property
    def dtype(self) -> str:
        """Type of the only input's raw data.

        Raises:
            DataError: there are several inputs.
        """
        return self._only.dtype

    @property
    def _only(self) -> InputInfo:
        if len(self.inputs) != 1:
            raise DataError(
                f"expected data with one input, received {len(self.inputs)} "
                f"({', '.join(self.inputs)})"
            )
        return next(iter(self.inputs.values()))

    def save(self, dataset: Path) -> None:
        """Write ``dataset.json`` into the directory ``dataset``."""
        (dataset / INFO_NAME).write_text(
            json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8"
        )

    def _check(self) -> None:
        """Check the types of values read from a file.

        Raises:
            TypeError: a value has another type.
        """
        names = (
            *self.classes,
            self.kind,
            *(each.dtype for each in self.inputs.values()),
            self.fingerprint,
            self.source,
            self.root or "",
            self.task,
            self.task_code,
        )
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"expected names as text, received {names!r:.200}")
        splits = self.splits.items()
        if not all(isinstance(name, str) and isinstance(count, int) for name, count in splits):
            raise TypeError(
                f"expected the number of samples of each part, received {self.splits!r:.200}"
            )

    @classmethod
    def load(cls, dataset: Path) -> DatasetInfo:
        """Read ``dataset.json`` of the directory ``dataset``.

        Raises:
            DataError: it is missing or has another content.
        """
        path = dataset / INFO_NAME
        if not os.path.lexists(path):
            raise DataError(
                f"{dataset} is no prepared data set: it holds no {INFO_NAME}. Run prepare_data "
                "first."
            )
        try:
            data: dict[str, Any] = read_json(
                path, what="the description of a data set", error=DataError
            )
            if "image_shape" in data:  # written before data sets had several inputs
                image = {"shape": data.pop("image_shape"), "dtype": data.pop("dtype")}
                data["inputs"] = {"x": image}
            info = cls(
                classes=tuple(data.pop("classes")),
                inputs={
                    str(name): InputInfo(shape=tuple(map(int, each["shape"])), dtype=each["dtype"])
                    for name, each in data.pop("inputs").items()
                },
                target_shape=tuple(map(int, data.pop("target_shape", ()))),
                **data,
            )
            info._check()
            return info
        except DataError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise DataError(
                f"{path} does not describe a data set: {error}. Run prepare_data again."
            ) from error
