"""Inference of engines over a data set, in their layout and batch size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qat_lib.engines import Engine
from qat_lib.engines.spec import parse_profile
from qat_lib.engines.values import TensorInfo
from qat_lib.errors import DataError
from qatline.components.tasks.task import Outputs

Array = NDArray[Any]
Shape = tuple[int, ...]


class EngineRunner:
    """An engine adapted to the reader's batches: float32, channels last, any sample count.

    Args:
        engine: the engine; its channels may be the second axis, as in PyTorch.
        shapes: shape of a sample of the only input, or of each of several by name.
        raw: whether batches are raw data, for engines with embedded preprocessing.

    Raises:
        DataError: the engine's inputs do not fit the data.
    """

    def __init__(
        self, engine: Engine, shapes: Shape | Mapping[str, Shape], *, raw: bool = False
    ) -> None:
        self.engine = engine
        if engine.manifest.preprocessing_embedded and not raw:
            raise DataError(
                f"The engine takes raw data ({', '.join(map(str, engine.inputs))}) and preprocesses "
                "it itself; the evaluation sends data that is preprocessed already. Export the "
                "model without embed_preprocessing for the pipeline."
            )
        if not isinstance(shapes, Mapping):
            if len(engine.inputs) != 1:
                raise DataError(
                    f"The engine has {len(engine.inputs)} inputs "
                    f"({', '.join(info.name for info in engine.inputs)}), the data has one."
                )
            shapes = {engine.inputs[0].name: shapes}
        if set(shapes) != {info.name for info in engine.inputs}:
            raise DataError(
                f"The engine has the inputs {', '.join(info.name for info in engine.inputs)}, the "
                f"data has {', '.join(shapes)}. Give the inputs of the data the names of the "
                "model's inputs."
            )
        self._inputs = [_Input(engine, info, tuple(shapes[info.name])) for info in engine.inputs]
        self._smallest, self._largest = engine.batch_sizes

    @property
    def output(self) -> str:
        """Names of the engine's outputs, for messages."""
        return ", ".join(info.name for info in self.engine.outputs)

    @property
    def output_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Shape of a sample of each output by name, with the channels in the last axis."""
        shapes = {}
        for info in self.engine.outputs:
            _, *shape = info.shape
            if self._is_channels_first(info):
                shape = [*shape[1:], shape[0]]
            shapes[info.name] = tuple(shape)
        return shapes

    @property
    def largest_batch(self) -> int:
        """Largest batch size of the engine."""
        return self._largest

    def nearest_batch(self, size: int) -> int:
        """Return the engine's batch size nearest to ``size``."""
        return min(max(size, self._smallest), self._largest)

    def as_taken(self, batch: Array | Mapping[str, Array]) -> dict[str, Array]:
        """Return raw data by input name: in the type that the engine takes, else in float32."""
        arrays = batch if isinstance(batch, Mapping) else {self._inputs[0].name: batch}
        types = {info.name: info.dtype for info in self.engine.inputs}
        return {
            name: x if str(x.dtype) == types[name] else x.astype(np.float32)
            for name, x in arrays.items()
        }

    def __call__(self, batch: Array | Mapping[str, Array]) -> Outputs:
        """Return the engine's output for a batch, or several outputs by name."""
        if isinstance(batch, Mapping):
            arrays = {each.name: batch[each.name] for each in self._inputs}
        else:
            arrays = {self._inputs[0].name: batch}
        request = {each.name: each.arranged(arrays[each.name]) for each in self._inputs}
        answers = self.engine.infer_many(request)
        outputs = {
            info.name: np.moveaxis(answers[info.name], 1, -1)
            if self._is_channels_first(info)
            else answers[info.name]
            for info in self.engine.outputs
        }
        return outputs if len(outputs) > 1 else next(iter(outputs.values()))

    def _is_channels_first(self, output: TensorInfo) -> bool:
        return self.engine.manifest.layout.get(output.name, "").startswith("NC")


class _Input:
    """An input of an engine and its layout.

    Raises:
        DataError: its shape differs from the data's.
    """

    def __init__(self, engine: Engine, info: TensorInfo, shape: Shape) -> None:
        self.name = info.name
        profile = parse_profile(engine.manifest.spec["shapes"][info.name])
        taken, layout = profile.optimum[1:], engine.manifest.layout.get(info.name)
        # Without a recorded layout the shape decides; it is ambiguous only if both layouts are
        # equal.
        self._channels_first = len(shape) > 1 and (
            not _fits(taken, shape) if layout is None else layout.startswith("NC")
        )
        if not _fits(taken, (shape[-1], *shape[:-1]) if self._channels_first else shape):
            of = "(height, width, channels)" if len(shape) == 3 else "per sample"
            raise DataError(
                f"The engine takes inputs of shape {taken}, the data set has {shape} {of}. Build "
                "the engine from a model that was trained on this data."
            )

    def arranged(self, x: Array) -> Array:
        """Return a batch in the engine's layout."""
        return np.ascontiguousarray(np.moveaxis(x, -1, 1)) if self._channels_first else x


def _fits(taken: Shape, shape: Shape) -> bool:
    """Return whether a sample has a shape, with -1 for any size."""
    return len(taken) == len(shape) and all(
        size in (-1, wanted) for wanted, size in zip(taken, shape, strict=True)
    )
