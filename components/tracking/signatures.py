"""The signature of an ONNX graph, as MLflow keeps it with a model."""

from __future__ import annotations

from typing import Any


def onnx_signature(model: Any) -> Any:
    """Return the input and output names, types and shapes of a loaded graph.

    -1 for a free dimension. Nothing is run.
    """
    import numpy as np
    import onnx
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    def schema(values: Any) -> Any:
        specs = []
        for value in values:
            tensor = value.type.tensor_type
            shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
            kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            specs.append(TensorSpec(kind, shape, value.name))
        return Schema(specs)

    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    return ModelSignature(inputs=schema(inputs), outputs=schema(model.graph.output))
