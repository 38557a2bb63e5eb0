"""Named data sets: scikit-learn's digits, and those of ``keras.datasets``."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np

from qat_lib.errors import DataError
from qatline.components.data.array_checks import Part, check_part, check_together
from qatline.components.data.array_source import ArraySource
from qatline.components.settings import DataSettings


def read_digits(settings: DataSettings) -> ArraySource:
    """Return scikit-learn's digits: uint8 ``(1797, 8, 8, 1)``, values 0 to 16.

    Raises:
        DataError: scikit-learn is not installed.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise DataError("data.kind=digits needs scikit-learn: pip install 'qatline[data]'")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    part = check_part("train", images.reshape(-1, 8, 8).astype(np.uint8), labels)
    return ArraySource(
        parts={"train": part},
        classes=tuple(settings.classes or ()),
        description="sklearn.datasets.load_digits",
        size=settings.image_size,
        value_scale=1 / 16,
    )


def read_keras_dataset(settings: DataSettings) -> ArraySource:
    """Return a data set of ``keras.datasets``, downloaded or from Keras's cache.

    Raises:
        DataError: the data set does not exist, cannot be fetched, or does not contain arrays of
            equal length.
    """
    name = settings.name or ""
    loaded = _load(name)
    try:
        (x_train, y_train), (x_test, y_test) = loaded
    except (TypeError, ValueError) as error:
        raise DataError(
            f"keras.datasets.{name} does not hold a training and a test part: {error}"
        ) from error
    parts: dict[str, Part] = {
        "train": check_part("train", np.asarray(x_train), np.asarray(y_train)),
        "test": check_part("test", np.asarray(x_test), np.asarray(y_test)),
    }
    check_together(parts)
    return ArraySource(
        parts=parts,
        classes=tuple(settings.classes or ()),
        description=f"keras.datasets.{name}",
        size=settings.image_size,
    )


def _load(name: str) -> Any:
    if importlib.util.find_spec("keras") is None:
        raise DataError("data.kind=keras needs Keras: pip install 'qatline[keras]'")
    try:
        module = importlib.import_module(f"keras.datasets.{name}")
        load_data = module.load_data
    except (ImportError, AttributeError) as error:
        raise DataError(
            f"data.name={name!r}: keras.datasets has no such data set; expected mnist, "
            "fashion_mnist, cifar10 or cifar100"
        ) from error
    try:
        return load_data()
    except Exception as error:  # Keras raises a bare Exception when a download fails.
        raise DataError(
            f"keras.datasets.{name} can't be loaded: {error}. It needs a network, or the file in "
            "Keras's cache (~/.keras/datasets); data.kind=npz reads a file of your own."
        ) from error
