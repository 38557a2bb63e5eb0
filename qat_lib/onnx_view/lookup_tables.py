"""Change the lookup tables of a graph a little, to measure rounding noise with integer inputs."""

from __future__ import annotations

import os

import numpy as np


def with_moved_tables(path: str | os.PathLike[str], size: float) -> bytes:
    """Return the content of an ONNX file, with random changes of the tables that a Gather reads.

    Tokens and other integers have no small change; the vectors that they select do.

    Args:
        path: the file.
        size: largest relative change.
    """
    import onnx

    model = onnx.load(path)
    tables = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    random = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor) if tensor.name in tables else None
        if values is not None and values.dtype.kind == "f":
            moved = values * (1 + size * random.uniform(-1, 1, values.shape))
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved.astype(values.dtype), tensor.name))
    content: bytes = model.SerializeToString()
    return content
