"""Reader of tables: CSV or Parquet files with columns of features or image paths, and targets."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.errors import DataError, MissingPackageError
from qatline.components.data.array_checks import (
    CHUNK_BYTES,
    Array,
    check_part,
    check_together,
)
from qatline.components.data.array_source import ArraySource
from qatline.components.data.file_source import FileSource, check_images
from qatline.components.data.folder_listing import PART_NAMES
from qatline.components.data.folder_source import make_source
from qatline.components.settings import DataSettings
from qatline.components.support.events import Progress

_BLOCK = 8192
_LARGEST_INTEGER = 2**53
_INTEGER = re.compile(r"[+-]?\d+")

Block = tuple[Sequence[str], Mapping[str, Sequence[Any]]]
"""Names of some rows for messages, and their values by column."""


def read_table(
    path: Path, settings: DataSettings, progress: Progress, head: int | None = None
) -> ArraySource | FileSource:
    """Read a CSV file with a header, or a Parquet file.

    Features become one float32 vector. With ``data.image_column`` the inputs are images instead.
    Target columns of integers are class indices, of other numbers numbers to predict, and of text
    class names. Several target columns give one vector per row. ``data.weight_column`` contains
    the weights of the rows in the training.

    Args:
        path: the table.
        settings: the columns.
        progress: receives the images.
        head: number of rows of each part to read of a large table, and of images to decode; None
            for all.

    Raises:
        DataError: the file or a column is missing, or a row cannot be read; the message names it.
        MissingPackageError: pyarrow is needed for a Parquet file and is not installed.
    """
    # A quick look reads small tables whole, and of large ones the first block with training rows.
    columns = _Columns(settings, _column_names(path), path)
    parts: dict[str, _Rows] = {}
    for names, block in _blocks(path):
        columns.add(parts, names, block)
        if head is not None and "train" in parts and path.stat().st_size > CHUNK_BYTES:
            break
    if not parts:
        raise DataError(f"{path}: expected rows, found none")
    if "train" not in parts:
        raise DataError(
            f"{path}: expected rows with {settings.split_column}=train, found "
            f"{', '.join(sorted(parts))}"
        )
    ordered = {name: parts[name] for name in dict.fromkeys(PART_NAMES.values()) if name in parts}
    targets, classes = _targets(ordered, settings, path)
    classes = tuple(settings.classes or classes)
    if settings.image_column is not None:
        if head is not None:
            ordered = {
                name: replace(rows, images=rows.images[:head]) for name, rows in ordered.items()
            }
            targets = {name: values[:head] for name, values in targets.items()}
        return _images(path, ordered, targets, classes, settings, progress)
    found = {
        name: check_part(
            name,
            np.concatenate(rows.features),
            targets[name],
            np.concatenate(rows.weights) if rows.weights else None,
        )
        for name, rows in ordered.items()
    }
    check_together(found)
    return ArraySource(parts=found, classes=classes, description=str(path))


def image_digest(path: Path, settings: DataSettings) -> str:
    """Return a SHA-256 of path, size and modification time of the images of a table."""
    digest, column = hashlib.sha256(), settings.image_column or ""
    for _, block in _blocks(path):
        for name in block[column]:
            status = (path.parent / str(name)).stat()
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _images(
    path: Path,
    parts: Mapping[str, _Rows],
    targets: Mapping[str, Array],
    classes: tuple[str, ...],
    settings: DataSettings,
    progress: Progress,
) -> FileSource:
    listed = [image for rows in parts.values() for image in rows.images]
    checked = check_images(path.parent, listed, settings, progress)
    values = np.concatenate([targets[name] for name in parts])[checked.kept]
    weights = None
    if settings.weight_column is not None:
        of_parts = [np.concatenate(rows.weights)[: len(rows.images)] for rows in parts.values()]
        weights = np.concatenate(of_parts)[checked.kept]
    sizes = {name: len(rows.images) for name, rows in parts.items()}
    return make_source(
        path.parent,
        listed,
        values,
        classes,
        checked,
        settings,
        sizes=sizes,
        location=str(path),
        weights=weights,
    )


@dataclass
class _Rows:
    """Rows of a part."""

    features: list[Array] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    targets: dict[str, list[Any]] = field(default_factory=dict)
    weights: list[Array] = field(default_factory=list)


class _Columns:
    """The columns of a table that are read.

    Raises:
        DataError: one is missing, or none is left for features.
    """

    def __init__(self, settings: DataSettings, present: Sequence[str], path: Path) -> None:
        self._path = path
        self._targets = settings.target_columns or []
        self._split, self._image = settings.split_column, settings.image_column
        self._weight = settings.weight_column
        # Without a list of features, all columns without another use are features.
        apart = {*self._targets, self._split, self._image, self._weight}
        self._features = settings.feature_columns or [n for n in present if n not in apart]
        named = {"target_columns": self._targets, "feature_columns": self._features}
        if self._split is not None:
            named["split_column"] = [self._split]
        if self._weight is not None:
            named["weight_column"] = [self._weight]
        if self._image is not None:
            named["image_column"], named["feature_columns"] = [self._image], []
        for key, names in named.items():
            for name in names:
                if name not in present:
                    raise DataError(
                        f"{path}: data.{key} names {name!r}, received the columns "
                        f"{', '.join(present)}"
                    )
        if twice := {name for name in present if present.count(name) > 1}:
            raise DataError(f"{path}: expected different columns, received {min(twice)!r} twice")
        if both := sorted(set(self._features) & apart):
            raise DataError(f"{path}: the column {both[0]!r} is a feature and also has another use")
        if self._image is None and not self._features:
            raise DataError(f"{path}: expected columns with features, found none")

    def add(
        self, parts: dict[str, _Rows], names: Sequence[str], block: Mapping[str, Sequence[Any]]
    ) -> None:
        """Add rows to their parts."""
        features = None
        if self._image is None:
            columns = [self._numbers(names, name, block[name]) for name in self._features]
            features = np.stack(columns, axis=1)
        weights = None
        if self._weight is not None:
            weights = self._numbers(names, self._weight, block[self._weight], least=0.0)
        for part, places in self._places(names, block).items():
            rows = parts.setdefault(part, _Rows())
            rows.names += [names[place] for place in places]
            if features is not None:
                rows.features.append(features[places])
            else:
                rows.images += [str(block[self._image or ""][place]) for place in places]
            if weights is not None:
                rows.weights.append(weights[places])
            for name in self._targets:
                values = block[name]
                rows.targets.setdefault(name, []).extend(values[place] for place in places)

    def _places(
        self, names: Sequence[str], block: Mapping[str, Sequence[Any]]
    ) -> dict[str, list[int]]:
        """Return the places of a block's rows by part."""
        if self._split is None:
            return {"train": list(range(len(names)))}
        places: dict[str, list[int]] = {}
        for place, value in enumerate(block[self._split]):
            part = PART_NAMES.get(str(value).strip().lower())
            if part is None:
                raise DataError(
                    f"{self._path}, {names[place]}: expected train, val or test in the column "
                    f"{self._split!r}, received {value!r:.100}"
                )
            places.setdefault(part, []).append(place)
        return places

    def _numbers(
        self,
        names: Sequence[str],
        column: str,
        values: Sequence[Any],
        least: float = -np.inf,
    ) -> Array:
        numbers = _finite(self._path, names, column, values)
        if (numbers < least).any():
            place = int(np.argmax(numbers < least))
            raise DataError(
                f"{self._path}, {names[place]}: expected a number from {least:g} in the column "
                f"{column!r}, received {values[place]!r:.100}"
            )
        return numbers.astype(np.float32)


def _finite(path: Path, names: Sequence[str], column: str, values: Sequence[Any]) -> Array:
    """Return a column as float64; every value must be a finite number."""
    try:
        numbers = np.asarray(values, np.float64)
        if np.isfinite(numbers).all():
            return numbers
    except (TypeError, ValueError):
        pass
    for name, value in zip(names, values, strict=True):
        try:
            is_number = bool(np.isfinite(float(value)))
        except (TypeError, ValueError):
            is_number = False
        if not is_number:
            raise DataError(
                f"{path}, {name}: expected a number in the column {column!r}, received "
                f"{'nothing' if value in ('', None) else repr(value)[:100]}"
            )
    raise DataError(f"{path}: expected numbers in the column {column!r}")


def _targets(
    parts: Mapping[str, _Rows], settings: DataSettings, path: Path
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return the targets of each part, and the class names found in them."""
    columns = settings.target_columns or []
    if len(columns) == 1 and _is_text(parts["train"].targets[columns[0]]):
        return _classes(parts, columns[0], settings, path)
    found = {}
    for name, rows in parts.items():
        arrays = []
        for column in columns:
            values = rows.targets[column]
            numbers = _finite(path, rows.names, column, values)
            is_integer = _are_integers(values) and np.abs(numbers).max() < _LARGEST_INTEGER
            arrays.append(numbers.astype(np.int64) if is_integer else numbers)
        stacked = np.stack(arrays, axis=1) if len(arrays) > 1 else arrays[0]
        found[name] = stacked.astype(np.float32) if stacked.dtype.kind == "f" else stacked
    is_multilabel = len(columns) > 1 and np.isin(found["train"], (0, 1)).all()
    return found, tuple(columns) if is_multilabel else ()


def _classes(
    parts: Mapping[str, _Rows], column: str, settings: DataSettings, path: Path
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return class indices for a column of class names."""
    # The names of the training rows only: a class that occurs only elsewhere is an error.
    classes = settings.classes or sorted({str(v) for v in parts["train"].targets[column] if v})
    index = {name: place for place, name in enumerate(classes)}
    found = {}
    for part, rows in parts.items():
        for name, value in zip(rows.names, rows.targets[column], strict=True):
            if value not in index:
                raise DataError(
                    f"{path}, {name}: expected a class out of {', '.join(classes)} in the column "
                    f"{column!r}, received {value!r:.100}"
                )
        found[part] = np.array([index[value] for value in rows.targets[column]], np.int64)
    return found, tuple(classes)


def _is_text(values: Sequence[Any]) -> bool:
    """Return whether most values are text other than numbers; a few may be typos in numbers."""
    texts = [value for value in values if isinstance(value, str) and value]
    count = 0
    for value in texts:
        try:
            float(value)
        except ValueError:
            count += 1
    return count * 2 > len(values)


def _are_integers(values: Sequence[Any]) -> bool:
    return all(
        _INTEGER.fullmatch(value.strip()) is not None
        if isinstance(value, str)
        else isinstance(value, int | np.integer)
        for value in values
    )


def _column_names(path: Path) -> list[str]:
    if path.suffix.lower() == ".parquet":
        return [str(name) for name in _parquet(path).schema_arrow.names]
    with _open_csv(path) as stream:
        return _header(_reader(stream), path)


def _blocks(path: Path) -> Iterator[Block]:
    """Yield a table's rows in blocks."""
    if path.suffix.lower() == ".parquet":
        yield from _parquet_blocks(path)
        return
    with _open_csv(path) as stream:
        reader = _reader(stream)
        header = _header(reader, path)
        rows = _numbered(reader, header, path)
        while block := list(islice(rows, _BLOCK)):
            lines = [f"line {line}" for line, _ in block]
            columns = list(zip(*(row for _, row in block), strict=True))
            yield lines, dict(zip(header, columns, strict=True))


def _header(reader: Any, path: Path) -> list[str]:
    try:
        return list(next(reader, []))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the header can't be read: {error}") from error


def _numbered(reader: Any, header: Sequence[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: expected {len(header)} fields, as in the "
                    f"header, received {len(row)}"
                )
            yield reader.line_num, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}, after line {reader.line_num}: {error}") from error


def _reader(stream: Any) -> Any:
    return csv.reader(stream, strict=True, skipinitialspace=True)


def _open_csv(path: Path) -> Any:
    try:
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"the table {path} can't be read: {error.strerror or error}")


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingPackageError(
            "a Parquet file needs pyarrow: pip install pyarrow, or save the table as CSV"
        ) from error
    try:
        return parquet.ParquetFile(path)
    except FileNotFoundError as error:
        raise DataError(f"the table {path} can't be read: it does not exist") from error
    except (ArrowException, OSError) as error:
        raise DataError(f"the table {path} can't be read: {error}") from error


def _parquet_blocks(path: Path) -> Iterator[Block]:
    from pyarrow import ArrowException

    start = 0
    try:
        for batch in _parquet(path).iter_batches(_BLOCK):
            names = [f"row {start + index}" for index in range(batch.num_rows)]
            yield names, {name: batch.column(name).to_pylist() for name in batch.schema.names}
            start += batch.num_rows
    except (ArrowException, OSError) as error:
        raise DataError(f"{path}, after row {start - 1}: {error}") from error
