"""Reader of TFRecords: shards of ``tf.train.Example`` with a schema in the config."""

from __future__ import annotations

import fnmatch
import gzip
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.errors import DataError, MissingPackageError
from qatline.components.data.array_checks import CHUNK_BYTES, Array
from qatline.components.data.array_source import ArraySource
from qatline.components.data.folder_listing import find_parts
from qatline.components.data.record_parts import RecordParts
from qatline.components.settings import DataSettings
from qatline.components.settings.source_settings import FeatureSettings
from qatline.components.storage.stored_file import split_pattern
from qatline.components.support.events import Progress

_SHARD = re.compile(r"\.(tfrecords?|tfrec)(\.gz)?(-\d+-of-\d+)?(\.gz)?$")
_LARGEST_BLOCK = 1024
_FRAME = 16  # bytes of length and checksums of a record
_KINDS = ("bytes_list", "float_list", "int64_list")


def is_record_file(name: str, pattern: str = "") -> bool:
    """Return whether a file is a shard: by ``pattern``, or by its suffix if that is empty.

    Known suffixes are ``.tfrecord``, ``.tfrecords`` and ``.tfrec``, also before ``.gz`` or a number
    such as ``-00003-of-00010``.
    """
    if pattern:
        return fnmatch.fnmatch(name, pattern)
    return _SHARD.search(name) is not None


def read_tfrecords(
    location: str,
    settings: DataSettings,
    scratch: Path,
    progress: Progress,
    head: int | None = None,
) -> ArraySource:
    """Read the shards of a folder, which may have the sub-folders ``train``, ``val`` and ``test``.

    Args:
        location: a folder, a pattern such as ``folder/train-*``, or one file.
        settings: schema of the records, target columns, and color and size of images.
        scratch: folder for the arrays.
        progress: receives the records.
        head: if given, only the first block of each part is read.

    Raises:
        DataError: a shard is missing or damaged, a record does not fit the schema, or a part is
            empty; the message names file and record.
        MissingPackageError: TensorFlow is not installed.
    """
    parts = _shards(location)
    with RecordParts(settings, scratch, progress) as records:
        for part, shards in parts.items():
            for shard in shards if head is None else shards[:1]:
                _add_shard(records, part, shard, settings, head)
        return records.source(tuple(settings.classes or ()), location, tuple(parts))


def _add_shard(
    records: RecordParts, part: str, shard: Path, settings: DataSettings, head: int | None
) -> None:
    first = 0
    for block in _blocks(shard, settings):
        columns = {
            name: _values(block[name], name, feature, shard, first)
            for name, feature in settings.features.items()
        }
        records.add(part, str(shard), first, columns)
        first += len(next(iter(block.values())))
        if head is not None:
            return


def _shards(location: str) -> dict[str, list[Path]]:
    """Return the shards of each part in order of their names."""
    is_folder = Path(location).expanduser().is_dir()
    folder, pattern = (location, "") if is_folder else split_pattern(location)
    root = Path(folder).expanduser()
    if root.is_file():
        return {"train": [root]}
    if not root.is_dir():
        raise DataError(f"{root} does not exist: expected a folder with TFRecords (data.path)")
    parts = {} if pattern else find_parts(root, None)
    found = {}
    for part, name in (parts or {"train": ""}).items():
        paths = (path for path in (root / name).rglob("*") if path.is_file())
        base = root / name
        found[part] = sorted(
            path for path in paths if is_record_file(path.relative_to(base).as_posix(), pattern)
        )
        if not found[part]:
            expected = f"files that match {pattern}" if pattern else "files such as *.tfrecord"
            raise DataError(f"{base}: expected {expected}, found none")
    return found


def _blocks(shard: Path, settings: DataSettings) -> Iterator[Mapping[str, Array]]:
    """Yield the features of a shard's records in blocks, ``(records, ...)``."""
    tf = _tensorflow()
    schema = {name: _expected(tf, feature) for name, feature in settings.features.items()}
    compressed = ".gz" in shard.name
    stored = tf.data.TFRecordDataset(str(shard), compression_type="GZIP" if compressed else "")
    total, size = _content_size(shard, compressed), _block_size(stored, shard)
    seen = first = 0
    try:
        for serialized in stored.batch(size).prefetch(1):
            content = serialized.numpy()
            try:
                block = tf.io.parse_example(serialized, schema)
            # TensorFlow fails to decode its own message about bytes that are not an Example.
            except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as error:
                problem = _problem(tf, content, settings.features, shard, first)
                raise problem or DataError(
                    f"{shard}, after record {first - 1}: {_short(error)}"
                ) from error
            yield {name: values.numpy() for name, values in block.items()}
            first += len(content)
            seen += sum(map(len, content)) + _FRAME * len(content)
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        raise _damaged(shard, _readable(stored), _short(error)) from error
    if seen != total:  # TensorFlow takes an incomplete header for the end
        raise _damaged(shard, first, f"{total - seen} more bytes")


def _block_size(stored: Any, shard: Path) -> int:
    """Return the number of records in about 32 MiB, by the size of the first."""
    try:
        sizes = [len(record) for record in stored.take(1).as_numpy_iterator()]
    except Exception as error:  # TensorFlow's errors cannot be imported without it
        raise _damaged(shard, 0, _short(error)) from error
    return max(1, min(_LARGEST_BLOCK, CHUNK_BYTES // max(*sizes, 1, 1)))


def _damaged(shard: Path, records: int, reason: str) -> DataError:
    return DataError(
        f"{shard} is truncated or damaged after {records} records: {reason}. Copy or write it again."
    )


def _readable(stored: Any) -> int:
    """Return the number of records before the first damaged one."""
    count = 0
    with suppress(Exception):
        for _ in stored:
            count += 1
    return count


def _content_size(shard: Path, compressed: bool) -> int:
    """Return the size of a shard's content.

    A compressed shard is read to its end: TensorFlow reads a truncated one without an error.
    """
    if not compressed:
        return shard.stat().st_size
    size = 0
    try:
        with gzip.open(shard) as stream:
            while block := stream.read(1 << 20):
                size += len(block)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{shard} is truncated or damaged: {error}. Copy or write it again."
        ) from error
    return size


def _expected(tf: Any, feature: FeatureSettings) -> Any:
    if feature.encoding != "values":
        return tf.io.FixedLenFeature((), tf.string)
    kind = tf.float32 if feature.is_float else tf.int64
    return tf.io.FixedLenFeature(tuple(feature.shape), kind)


def _problem(
    tf: Any,
    serialized: Sequence[bytes],
    features: Mapping[str, FeatureSettings],
    shard: Path,
    first: int,
) -> DataError | None:
    """Return the error of the first record that does not fit the schema."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    for place, record in enumerate(serialized):
        where = f"{shard}, record {first + place}"
        try:
            present = tf.train.Example.FromString(record).features.feature
        except DecodeError:
            return DataError(
                f"{where}: expected a tf.train.Example, received {len(record)} other bytes"
            )
        for name, feature in features.items():
            if (reason := _mismatch(present, name, feature)) is not None:
                return DataError(f"{where}: {reason}")
    return None


def _mismatch(present: Any, name: str, feature: FeatureSettings) -> str | None:
    """Return the difference between a record's feature and the schema, or None."""
    if name not in present or present[name].WhichOneof("kind") is None:
        known = ", ".join(sorted(present)) or "none"
        return f"expected the feature {name!r}, received {known}"
    kind = _kind(feature)
    received = present[name].WhichOneof("kind")
    if received != kind:
        return f"expected {kind} as the feature {name!r}, received {received}"
    count = len(getattr(present[name], kind).value)
    wanted = 1 if feature.encoding != "values" else math.prod(feature.shape)
    if count == wanted:
        return None
    shape = f" for the shape {list(feature.shape)}" if feature.encoding == "values" else ""
    return f"expected {wanted} values of the feature {name!r}{shape}, received {count}"


def _kind(feature: FeatureSettings) -> str:
    if feature.encoding != "values":
        return _KINDS[0]
    return _KINDS[1] if feature.is_float else _KINDS[2]


def _values(
    values: Array, name: str, feature: FeatureSettings, shard: Path, first: int
) -> Array | list[bytes]:
    """Return a feature of some records in its type; encoded images as they are."""
    if feature.encoding == "image":
        return list(values)
    kind = np.dtype(feature.dtype)
    if feature.encoding == "values":
        converted = values.astype(kind)
        # Records store 64-bit integers or 32-bit floats; a narrower type must not change a value.
        if kind.kind in "iu" and (wrong := (converted != values).reshape(len(values), -1)).any():
            place = int(wrong.any(axis=1).argmax())
            raise DataError(
                f"{shard}, record {first + place}: expected {feature.dtype} as the feature "
                f"{name!r}, received {values[place].ravel()[wrong[place].argmax()]}"
            )
        return converted
    expected = math.prod(feature.shape) * kind.itemsize
    for place, content in enumerate(values):
        if len(content) != expected:
            raise DataError(
                f"{shard}, record {first + place}: expected {expected} bytes as the feature "
                f"{name!r} ({feature.dtype} {list(feature.shape)}), received {len(content)}"
            )
    # Little-endian, as ``tf.io.decode_raw`` expects by default.
    whole = np.frombuffer(b"".join(values), kind.newbyteorder("<"))
    return whole.astype(kind).reshape(len(values), *feature.shape)


def _short(error: Exception) -> str:
    return str(getattr(error, "message", error)).partition(" [Op:")[0].strip()[:300]


def _tensorflow() -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingPackageError(
            "data.kind=tfrecord needs TensorFlow: pip install 'qatline[keras]'"
        ) from error
    return tf
