"""Largest tensor accepted by engine builders.

No backend has kernels for tensors of 2 ** 31 or more elements, and builders fail with a message
about memory, or without one. The sizes come from shape inference, so nothing is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import onnx

from qat_lib.errors import ExportError
from qat_lib.onnx_view.graph import OnnxGraph
from qat_lib.onnx_view.shapes import fixed_sizes, infer_graph, types_of

#: TensorRT's limit; 8 GiB of float32.
MAX_ELEMENTS = 2**31 - 1


def check_bounds(
    path: Path, model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None = None
) -> None:
    """Check the size of each tensor in ``model``.

    Args:
        path: the file, for the message.
        model: the model, from ``qat_lib.onnx_view.loading.load_onnx``.
        shapes: largest shape of each graph input. Default None: as the file declares them.

    Raises:
        ExportError: a tensor has more than ``MAX_ELEMENTS`` elements, or the nodes form no graph.
    """
    OnnxGraph(model)  # Rejects cycles, because shape inference ignores them.
    for name, found in types_of(model, infer_graph(model, shapes)).items():
        if found.shape and prod(fixed_sizes(found.shape)) > MAX_ELEMENTS:
            raise ExportError(
                f"Expected tensors of at most {MAX_ELEMENTS:,} elements. In {path}, {name!r} has "
                f"the shape {list(found.shape)}. Build for a smaller batch or image."
            )
