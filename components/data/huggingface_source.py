"""Reader of data sets of Hugging Face: saved folders, or data sets of the hub.

``datasets`` from version 4 on executes no code of a data set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.errors import DataError, MissingPackageError
from qat_lib.support.foreign_errors import describe_error
from qatline.components.data.array_checks import CHUNK_BYTES, Array
from qatline.components.data.array_source import ArraySource
from qatline.components.data.folder_listing import PART_NAMES
from qatline.components.data.images import read_image
from qatline.components.data.record_parts import RecordParts
from qatline.components.settings import DataSettings
from qatline.components.support.events import Progress

_LARGEST_BLOCK = 1024


def read_huggingface(
    folder: Path | None,
    settings: DataSettings,
    scratch: Path,
    progress: Progress,
    head: int | None = None,
) -> ArraySource:
    """Read a folder written by ``save_to_disk``, or a data set of the hub.

    Images, arrays of equal shapes and numbers are inputs. Splits other than train, validation and
    test are left out, with a warning.

    Args:
        folder: the folder; None for ``data.name`` at ``data.revision`` on the hub.
        settings: columns, and color and size of images.
        scratch: folder for the arrays.
        progress: receives the records, and warnings.
        head: number of records of each part to read; None for all.

    Raises:
        DataError: the data set cannot be opened, a column is missing, or a record cannot be used;
            the message names it.
        MissingPackageError: ``datasets`` is not installed.
    """
    location = str(folder) if folder is not None else settings.name or ""
    opened = _open(folder, settings)
    splits = dict(opened) if isinstance(opened, Mapping) else {"train": opened}
    parts: dict[str, tuple[str, Any]] = {}
    for split, data in splits.items():
        part = PART_NAMES.get(str(split))
        if part is None:
            progress.warn(f"left out: the split {split!r} of {location}")
        elif part in parts:
            raise DataError(f"{location}: {parts[part][0]} and {split} are the same part")
        else:
            parts[part] = (str(split), data)
    if "train" not in parts:
        raise DataError(f"{location}: expected a split train, received {', '.join(splits)}")
    # The training part determines the columns; the other parts must have the same.
    features = parts["train"][1].features
    targets = settings.target_columns or _class_columns(features, location)
    settings = settings.model_copy(update={"target_columns": targets})
    columns = _columns(features, settings, location)
    with RecordParts(settings, scratch, progress) as records:
        for part, (split, data) in parts.items():
            kept = data if head is None else data.select(range(min(head, len(data))))
            _add_split(records, part, f"{location}, {split} split", kept, columns)
        names = getattr(features[targets[0]], "names", None) or ()
        return records.source(tuple(settings.classes or names), location, tuple(parts))


def _open(folder: Path | None, settings: DataSettings) -> Any:
    datasets = _datasets()
    try:
        if folder is not None:
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(settings.name, revision=settings.revision, **settings.options)
    except Exception as error:  # errors of Arrow, the hub's client and any reader
        if folder is not None:
            raise _damaged(folder, error) from error
        raise DataError(
            f"{settings.name} at {settings.revision} can't be read from the hub: "
            f"{describe_error(error)}. Without access to it, write the data set by save_to_disk "
            "elsewhere and set data.path."
        ) from error


def _damaged(folder: Path, error: Exception) -> DataError:
    """Return the error of a folder, with the name of its damaged file or empty split."""
    import pyarrow

    place = folder
    for path in sorted(folder.rglob("state.json")):
        if not list(path.parent.glob("*.arrow")):
            return DataError(f"{path.parent}: expected records, found none")
    for path in sorted(folder.rglob("*.arrow")):
        try:
            with pyarrow.memory_map(str(path)) as content:
                pyarrow.ipc.open_stream(content).read_all()
        except (pyarrow.ArrowException, OSError):
            place = path
            break
    return DataError(
        f"{place}: expected a folder written by save_to_disk, complete: {describe_error(error)}"
    )


def _class_columns(features: Mapping[str, Any], location: str) -> list[str]:
    found = [name for name, feature in features.items() if hasattr(feature, "names")]
    if len(found) != 1:
        raise DataError(
            f"{location}: expected one column of class labels, received "
            f"{', '.join(found) or 'none'}. Set data.target_columns to some of "
            f"{', '.join(features)}."
        )
    return found


def _columns(features: Mapping[str, Any], settings: DataSettings, location: str) -> dict[str, bool]:
    """Return the columns to read, and whether they are images.

    Raises:
        DataError: a column is missing, or is text.
    """
    targets = settings.target_columns or []
    inputs = settings.feature_columns or [name for name in features if name not in targets]
    columns = {}
    for key, names in (("target_columns", targets), ("feature_columns", inputs)):
        for name in names:
            if name not in features:
                raise DataError(
                    f"{location}: data.{key} names {name!r}, received the columns "
                    f"{', '.join(features)}"
                )
            kind = features[name]
            columns[name] = type(kind).__name__ == "Image"
            if getattr(kind, "dtype", "") in ("string", "large_string", "binary"):
                raise DataError(
                    f"{location}: expected numbers, arrays or images in the column {name!r}, "
                    "received text. Name the inputs in data.feature_columns."
                )
    if both := sorted(set(inputs) & set(targets)):
        raise DataError(f"{location}: the column {both[0]!r} is an input and a target")
    if not inputs:
        raise DataError(f"{location}: expected columns with inputs, found none")
    return columns


def _add_split(
    records: RecordParts, part: str, where: str, data: Any, columns: Mapping[str, bool]
) -> None:
    from datasets import Image

    if missing := [name for name in columns if name not in data.features]:
        raise DataError(
            f"{where}: expected the column {missing[0]!r}, received {', '.join(data.features)}"
        )
    data = data.select_columns(list(columns))
    # Encoded images pass through: they are decoded and checked as those of other sources.
    for name in [name for name, is_image in columns.items() if is_image]:
        data = data.cast_column(name, Image(decode=False))
    # Blocks of bounded size in memory, by the average size of a record.
    row = max(1, data.data.nbytes // max(1, len(data)))
    size, first = max(1, min(_LARGEST_BLOCK, CHUNK_BYTES // row)), 0
    while first < len(data):
        try:
            block = data.with_format("numpy")[first : first + size]
        except Exception as error:  # Arrow's errors of a damaged file
            last = min(first + size, len(data)) - 1
            raise DataError(
                f"{where}, records {first} to {last} can't be read: {describe_error(error)}"
            ) from error
        values = {
            name: _images(block[name], name, where, first)
            if is_image
            else _array(block[name], name, where, first, data.features[name])
            for name, is_image in columns.items()
        }
        records.add(part, where, first, values)
        first += size


def _images(values: Sequence[Any], name: str, where: str, first: int) -> list[bytes]:
    """Return the content of image files, either part of a record or named in it."""
    contents = []
    for place, value in enumerate(values):
        if value is None or (value["bytes"] is None and value["path"] is None):
            raise DataError(f"{where}, record {first + place}: expected an image as {name!r}")
        contents.append(value["bytes"] or read_image(Path(value["path"])))
    return contents


def _array(values: Any, name: str, where: str, first: int, feature: Any) -> Array:
    """Return a column ``(records, ...)``; every record must have a value of the same shape."""
    array = np.asarray(values)
    is_integer = np.issubdtype(array.dtype, np.integer) or array.dtype == bool
    expected = str(getattr(feature, "dtype", ""))
    # A column of integers with a missing value arrives as floats with NaN.
    if array.dtype.kind == "f" and expected.startswith(("int", "uint", "bool")):
        place = int(np.isnan(array).reshape(len(array), -1).any(axis=1).argmax())
        raise DataError(f"{where}, record {first + place}: expected {expected} as {name!r}")
    if array.dtype.kind == "f" or is_integer:
        return array.astype(np.int64) if array.dtype == bool else array
    # An array of objects: find the record whose shape differs, for the message.
    shapes = [np.shape(value) if value is not None else None for value in values]
    for place, shape in enumerate(shapes):
        if shape is None or shape != shapes[0]:
            raise DataError(
                f"{where}, record {first + place}: expected numbers of the shape {shapes[0]} as "
                f"{name!r}, received {'nothing' if shape is None else shape}"
            )
    raise DataError(f"{where}: expected numbers in the column {name!r}, received {array.dtype}")


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingPackageError(
            "data.kind=huggingface needs datasets: pip install 'qatline[hf]'"
        ) from error
    return datasets
