"""Source of data returned by a user's function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.errors import DataError, QatlineError
from qat_lib.support.foreign_errors import describe_error
from qatline.components.data.array_checks import Array, Part, check_part, check_together
from qatline.components.data.array_source import ArraySource
from qatline.components.data.folder_listing import PART_NAMES
from qatline.components.data.streamed_arrays import ArrayWriter, as_array
from qatline.components.settings import DataSettings
from qatline.components.support.events import Progress
from qatline.components.support.user_code import call, import_callable

_CLASSES = "classes"


def read_python(
    settings: DataSettings, scratch: Path, progress: Progress, head: int | None = None
) -> ArraySource:
    """Call ``data.name`` with ``data.options`` and return its data.

    The function returns a mapping with the parts ``train`` and optionally ``val`` and ``test``, and
    optionally ``classes``, a list of names; or the training part alone. A part is ``(x, y)``, with
    ``x`` an array or a mapping of arrays by input; or batches ``(x, y)``, such as a
    ``tf.data.Dataset``, a ``keras.utils.PyDataset`` or a PyTorch ``DataLoader``. Batches are written
    to disk one after another. Both forms may have sample weights: ``(x, y, weights)``.

    Args:
        settings: the function, its options, class names and image size.
        scratch: folder for batches.
        progress: receives the batches.
        head: if given, only the first batch of each part is read.

    Raises:
        ConfigError: the function cannot be imported, or it fails.
        DataError: it returns something else, or its batches differ in shape or fail.
    """
    reference = settings.name or ""
    function = import_callable("data.name", reference)
    returned = call("data.name", reference, function, **settings.options)
    given = dict(returned) if isinstance(returned, Mapping) else {"train": returned}
    classes = tuple(settings.classes or map(str, given.pop(_CLASSES, ())))
    parts: dict[str, Part] = {}
    for key, value in given.items():
        name = PART_NAMES.get(str(key))
        if name is None or name in parts:
            raise DataError(
                f"{reference}: expected the parts train, val and test, each once; received "
                f"{', '.join(map(str, given))}"
            )
        found = _arrays(value, name, reference, scratch, progress, 1 if head else None)
        parts[name] = check_part(name, *found)
    if "train" not in parts:
        raise DataError(
            f"{reference}: expected the part train, received {', '.join(map(str, given)) or 'none'}"
        )
    check_together(parts)
    return ArraySource(
        parts=parts, classes=classes, description=reference, size=settings.image_size
    )


def _arrays(
    value: Any, part: str, reference: str, scratch: Path, progress: Progress, batches: int | None
) -> tuple[Array | dict[str, Array], Array, Array | None]:
    """Return inputs, targets and weights of a part; batches are written to disk."""
    # A tuple is data in memory. Data sets and loaders are other iterables.
    if isinstance(value, tuple) and len(value) in (2, 3):
        x, y, *weights = value
        inputs = (
            {str(n): as_array(v) for n, v in x.items()} if isinstance(x, Mapping) else as_array(x)
        )
        return inputs, as_array(y), as_array(weights[0]) if weights else None
    folder = scratch / part
    folder.mkdir()
    writer = ArrayWriter(folder, f"{reference}, {part} part")
    try:
        for number, batch in enumerate(islice(_batches(value, reference, part), batches)):
            where = f"{writer.where}, batch {number}"
            if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
                raise DataError(
                    f"{where}: expected (x, y) or (x, y, weights), received {_kind(batch)}"
                )
            x, y, *weights = batch
            writer.add(x, y, where, *weights)
            progress.update(f"reading {part}", number + 1, number + 1)
    except QatlineError:
        raise
    except Exception as error:  # the user's own code
        raise DataError(
            f"{reference}: the {part} part failed after {writer.batches} batches: "
            f"{type(error).__name__}: {describe_error(error)}"
        ) from error
    finally:
        writer.close()
    return writer.arrays()


def _batches(value: Any, reference: str, part: str) -> Iterator[Any]:
    cardinality = getattr(value, "cardinality", None)
    if cardinality is not None and int(cardinality()) == -1:
        raise DataError(f"{reference}: the {part} part repeats without end: remove repeat()")
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):  # a PyDataset
        return (value[index] for index in range(len(value)))
    if hasattr(value, "__iter__") and not isinstance(value, str | bytes | np.ndarray):
        return iter(value)
    raise DataError(
        f"{reference}: expected the {part} part as (x, y) or as batches (x, y), received a "
        f"{type(value).__name__}"
    )


def _kind(batch: Any) -> str:
    length = f" of {len(batch)}" if hasattr(batch, "__len__") else ""
    return f"a {type(batch).__name__}{length}"
