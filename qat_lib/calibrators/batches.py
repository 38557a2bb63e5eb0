"""Conversion of calibration data in every accepted form to batches of model inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qat_lib.errors import CalibrationError


@dataclass(frozen=True, kw_only=True)
class BatchReader:
    """Splits data into batches for a model.

    Attributes:
        inputs: number of the model's inputs.
        is_array: returns whether an object is an array or tensor of the framework, or NumPy's.
        convert: converts an array to a tensor of the framework.
    """

    inputs: int
    is_array: Callable[[Any], bool]
    convert: Callable[[Any], Any]

    def batches(self, data: Any, batch_size: int) -> Iterator[Any]:
        """Yield batches as a tensor, a list or a dict of tensors, ready for the model.

        Raises:
            CalibrationError: inputs differ in their number of samples, or ``data`` has another
                form.
        """
        if self._is_whole(data) or self._is_one_for_each(data):
            yield from self._cut(data, batch_size)
            return
        if not isinstance(data, Iterable) or isinstance(data, Mapping):
            raise CalibrationError(
                f"Expected arrays or an iterable of batches. Received: {type(data).__name__}."
            )
        ranks: dict[int, Any] = {}
        for batch in data:
            # A tuple that is not one array per input is (inputs, labels), as in a tf.data.Dataset.
            alone = not isinstance(batch, (tuple, list)) or self._is_one_for_each(batch)
            taken = batch if alone else batch[0]
            if self.is_array(taken):
                ranks.setdefault(len(taken.shape), tuple(taken.shape))
            if len(ranks) > 1:
                raise CalibrationError(
                    "Expected batches with one number of dimensions, since the model has one input "
                    "(arguments with a default keep it). Received batches of shape "
                    f"{' and '.join(map(str, ranks.values()))}."
                )
            yield taken

    def _cut(self, data: Any, batch_size: int) -> Iterator[Any]:
        sizes = [len(part) for part in _parts(data)]
        if len(set(sizes)) > 1:
            raise CalibrationError(
                f"Expected as many samples for each input. Received: {', '.join(map(str, sizes))}."
            )
        for start in range(0, sizes[0], batch_size):
            stop = start + batch_size
            if isinstance(data, Mapping):
                yield {name: self.convert(part[start:stop]) for name, part in data.items()}
            elif isinstance(data, (tuple, list)):
                yield type(data)(self.convert(part[start:stop]) for part in data)
            else:
                yield self.convert(data[start:stop])

    def _is_whole(self, data: Any) -> bool:
        if isinstance(data, Mapping):
            return len(data) > 0 and all(map(self.is_array, data.values()))
        return self.is_array(data)

    def _is_one_for_each(self, data: Any) -> bool:
        """Return whether data is a list with one array for each input."""
        if not isinstance(data, (tuple, list)):
            return False
        # With one input, a list is an iterable of batches.
        return self.inputs > 1 and len(data) == self.inputs and all(map(self.is_array, data))


def read_arrays(data: Any, names: Sequence[str], batch_size: int) -> Iterator[list[np.ndarray]]:
    """Yield batches as NumPy arrays in the order of a model's inputs.

    Args:
        data: data in any form that ``calibrate`` takes, of either framework.
        names: names of the inputs.
        batch_size: size of the batches that arrays are cut into.

    Raises:
        CalibrationError: a batch lacks an input, or ``data`` has another form.
    """
    reader = BatchReader(inputs=len(names), is_array=_is_arraylike, convert=lambda x: x)
    for batch in reader.batches(data, batch_size):
        given = inputs_in_order(names, batch) if isinstance(batch, Mapping) else batch
        yield [_as_numpy(part) for part in _parts(given)]


def _is_arraylike(data: Any) -> bool:
    return hasattr(data, "shape") and hasattr(data, "dtype")


def _as_numpy(tensor: Any) -> np.ndarray:
    # A PyTorch tensor may need gradients, be on a GPU, or of a type that NumPy lacks.
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        tensor = tensor.float() if "bfloat16" in str(tensor.dtype) else tensor
    return np.asarray(tensor)


def inputs_in_order(names: Sequence[str], batch: Mapping[str, Any]) -> list[Any]:
    """Return a batch, given by name, in the order of the model's inputs.

    Raises:
        CalibrationError: an input is missing.
    """
    if missing := [name for name in names if name not in batch]:
        raise CalibrationError(
            f"Expected the inputs {', '.join(names)}. The data lacks {missing[0]!r}."
        )
    return [batch[name] for name in names]


def count_samples(batch: Any) -> int:
    """Return the number of samples in a batch."""
    return int(np.shape(_parts(batch)[0])[0])


def _parts(data: Any) -> list[Any]:
    if isinstance(data, Mapping):
        return list(data.values())
    return list(data) if isinstance(data, (tuple, list)) else [data]
