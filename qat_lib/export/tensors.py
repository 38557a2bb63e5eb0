"""Constants of an ONNX file as arrays, including external data.

Requires onnx and NumPy only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.checker import ValidationError

from qat_lib.errors import ExportError
from qat_lib.onnx_view.identity import Identities
from qat_lib.onnx_view.metadata import read_metadata
from qat_lib.onnx_view.protos import input_name
from qat_lib.onnx_view.tensor_data import quantized


class Tensors:
    """Initializers of a model by name, and the identities of its nodes.

    Args:
        proto: the model.
        folder: folder of its external data.

    Raises:
        ExportError: the record of the nodes' identities is damaged.
    """

    def __init__(self, proto: onnx.ModelProto, folder: Path) -> None:
        self.proto = proto
        self.folder = folder
        self.identities = Identities.of_metadata(read_metadata(proto))
        self._initializers = {tensor.name: tensor for tensor in proto.graph.initializer}

    def get(self, name: str) -> np.ndarray | None:
        """Return an initializer as an array, or None if it does not exist.

        Raises:
            ExportError: the data can't be read.
        """
        tensor = self._initializers.get(name)
        if tensor is None:
            return None
        try:
            return np.asarray(numpy_helper.to_array(tensor, str(self.folder)))
        except (ValueError, TypeError, OSError, ValidationError) as error:
            raise ExportError(
                f"Expected tensor {name!r} to hold {list(tensor.dims)} values. Its data can't be "
                f"read: {error}. "
                "Export or copy the file again."
            ) from error

    def quantizer(self, node: onnx.NodeProto) -> str:
        """Return the quantizer of a Q or DQ node; empty for other nodes."""
        return self.identities.quantizer(node.name, node.op_type)

    def integers(self, quantize: Any | None, name: str) -> np.ndarray | None:
        """Return the integer weights ``name`` as INT8, or the integers of a Q from float weights.

        The result is None if the weights are not constant, or the scales of ``quantize`` do not
        match.
        """
        if quantize is None:
            stored = self.get(name)
            # The record of the export contains the digest of INT8 integers.
            return (
                stored.astype(np.int8)
                if stored is not None and stored.dtype.name == "int4"
                else stored
            )
        weight, scale = (self.get(input_name(quantize, index)) for index in (0, 1))
        if quantize.op_type != "QuantizeLinear" or weight is None or scale is None:
            return None
        # The default axis of ONNX is 1.
        axis = next((a.i for a in quantize.attribute if a.name == "axis"), 1)
        return quantized(weight, scale, np.zeros_like(scale, np.int8), axis)
