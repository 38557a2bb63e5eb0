"""Source of arrays, in memory or memory-mapped."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qat_lib.files.npy import take_rows
from qatline.components.artifacts import Dataset
from qatline.components.artifacts.data_info import InputInfo
from qatline.components.data.array_checks import CHUNK_BYTES, Array, Part, chunks
from qatline.components.data.images import resize_array
from qatline.components.data.source import Samples
from qatline.components.data.streamed_arrays import Origins
from qatline.components.support.events import Progress

# Maximum number of samples to convert at once, within CHUNK_BYTES.
_BLOCK = 1024


@dataclass(frozen=True, kw_only=True)
class ArraySource:
    """Checked arrays; see ``qatline.components.data.source.Source`` for the properties.

    Args:
        parts: ``train``, and optionally ``validation`` and ``test``.
        classes: names in label order; empty if the source has none.
        description: origin of the arrays.
        size: target ``(height, width)`` of images; None keeps the size of the arrays.
        value_scale: default factor on values; None is 1/255 for uint8 and 1 for floats.
        resized: inputs with images that are resized already.
        origins: files and records of each part's samples; None for plain arrays.
        broken: number of skipped samples.
    """

    parts: Mapping[str, Part]
    classes: tuple[str, ...]
    description: str
    size: tuple[int, int] | None = None
    value_scale: float | None = None
    resized: frozenset[str] = frozenset()
    origins: Mapping[str, Origins] | None = None
    root: str | None = None
    broken: int = 0

    @property
    def targets(self) -> Mapping[str, Array]:
        """Targets of each part."""
        return {name: part.targets for name, part in self.parts.items()}

    @property
    def weights(self) -> Array | None:
        """Weights of the training samples."""
        return self.parts["train"].weights

    @property
    def inputs(self) -> Mapping[str, InputInfo]:
        """Shape after resizing, and data type of each input."""
        return {name: self._info(x) for name, x in self.parts["train"].inputs.items()}

    def _info(self, x: Array) -> InputInfo:
        shape = x.shape[1:]
        if self.size and len(shape) == 3:
            shape = (*self.size, shape[-1])
        return InputInfo(shape=shape, dtype="uint8" if x.dtype == np.uint8 else "float32")

    def scale(self, name: str) -> float:
        """Return the default factor on an input's values."""
        return self.value_scale or (1 / 255 if self.inputs[name].dtype == "uint8" else 1.0)

    def resize(self, name: str) -> str | None:
        """Return ``bilinear`` if images are resized."""
        given = self.parts["train"].inputs[name].shape[1:]
        is_resized = name in self.resized or self.inputs[name].shape != given
        return "bilinear" if is_resized else None

    def statistics(self, name: str, samples: Samples) -> tuple[Array, Array]:
        """Return mean and standard deviation of each channel of an input, over some samples."""
        x = self.parts[samples.part].inputs[name]
        channels = x.shape[-1]
        count, mean, spread = 0, np.zeros(channels), np.zeros(channels)
        step = max(1, CHUNK_BYTES // (8 * math.prod(x.shape[1:])))
        for start in range(0, len(samples.indices), step):
            values = x[samples.indices[start : start + step]].astype(np.float64)
            values = values.reshape(-1, channels)
            # Merge the moments of blocks (Chan et al.): sums of squares would cancel.
            shift, total = values.mean(axis=0) - mean, count + len(values)
            spread += ((values - values.mean(axis=0)) ** 2).sum(axis=0)
            spread += shift**2 * (count * len(values) / total)
            mean += shift * (len(values) / total)
            count = total
        return mean, np.sqrt(spread / max(count, 1))

    def sample(self, part: str, index: int) -> str:
        """Return file and record of a sample, or its index."""
        if self.origins is not None:
            return self.origins[part].name(index)
        return f"{part} targets, sample {index}"

    def fingerprint(self) -> str:
        """Return the SHA-256 of the names, shapes, data types and contents of all parts."""
        digest = hashlib.sha256()
        for name, part in sorted(self.parts.items()):
            for key, x in sorted(part.inputs.items()):
                digest.update(f"{name} {key} {x.dtype.str} {x.shape}\n".encode())
                for _, chunk in chunks(x):
                    digest.update(np.ascontiguousarray(chunk).data)
            for _, chunk in chunks(part.targets):
                digest.update(np.ascontiguousarray(chunk).data)
            if part.weights is not None:
                digest.update(b"weights" + part.weights.tobytes())
        return digest.hexdigest()

    def write(
        self, dataset: Dataset, split: str, samples: Samples, progress: Progress
    ) -> list[bytes]:
        """Write the inputs of a part, block by block."""
        digests = [
            self._write_input(dataset, split, samples, name, progress) for name in self.inputs
        ]
        if len(digests) == 1:
            return digests[0]
        return [hashlib.sha256(b"".join(each)).digest() for each in zip(*digests, strict=True)]

    def _write_input(
        self, dataset: Dataset, split: str, samples: Samples, name: str, progress: Progress
    ) -> list[bytes]:
        """Write one input.

        Blocks are written instead of memory-mapped: on a full disk, a memory map kills the process
        with SIGBUS.
        """
        x, info = self.parts[samples.part].inputs[name], self.inputs[name]
        indices, is_only = samples.indices, len(self.inputs) == 1
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(info.dtype)),
            "fortran_order": False,
            "shape": (len(indices), *info.shape),
        }
        digests: list[bytes] = []
        largest = max(math.prod(x.shape[1:]), math.prod(info.shape)) * np.dtype(info.dtype).itemsize
        block = min(_BLOCK, max(1, CHUNK_BYTES // largest))
        with dataset.input_file(split, "" if is_only else name).open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            for start in range(0, len(indices), block):
                values = take_rows(x, indices[start : start + block])
                values = values.astype(info.dtype, order="C", copy=False)
                if values.shape[1:] != info.shape:
                    values = resize_array(values, (info.shape[0], info.shape[1]))
                stream.write(values.data)
                digests += [hashlib.sha256(sample.data).digest() for sample in values]
                phase = f"writing {split}" if is_only else f"writing {split}, {name}"
                progress.update(phase, start + len(values), len(indices))
        return digests
