"""Deserialized TensorRT engine: tensors, shapes, description."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from qat_lib.engines.spec import ShapeProfile
from qat_lib.engines.tensorrt.callbacks import BuildLog
from qat_lib.engines.tensorrt.library import make_entry
from qat_lib.engines.values import TensorInfo
from qat_lib.errors import EngineError, EngineLoadError
from qat_lib.support.mappings import map_values


class LoadedPlan:
    """A deserialized engine and factory of execution contexts.

    Args:
        trt: the ``tensorrt`` module.
        data: the serialized engine.
        log: log for TensorRT's messages.
        version_compatible: whether the engine was built for later versions, with an embedded
            runtime.
    """

    def __init__(
        self, trt: Any, data: bytes, log: BuildLog, *, version_compatible: bool = False
    ) -> None:
        self.trt = trt
        runtime, self._logger = make_entry(trt, "Runtime", log)
        if version_compatible:
            # The embedded runtime is host code, which TensorRT rejects by default.
            runtime.engine_host_code_allowed = True
        self._runtime = runtime
        self.engine = runtime.deserialize_cuda_engine(data)
        if self.engine is None:
            raise EngineLoadError(
                f"TensorRT {trt.__version__} can't load the engine. {' '.join(log.errors()[-3:])} "
                "Build it again with this version on this GPU."
            )
        self._log = log
        self._making = threading.Lock()

    def create_context(self) -> Any:
        """Return a new execution context: scratch memory and state of one request.

        Raises:
            EngineLoadError: the GPU memory is insufficient.
        """
        with self._making:
            context = self.engine.create_execution_context()
        if context is None:
            raise EngineLoadError(
                "TensorRT can't make an execution context, most often for lack of GPU memory. "
                f"{' '.join(self._log.errors()[-3:])} Close other programs on the GPU, or build "
                "with a smaller largest batch."
            )
        return context

    def tensors(self) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        """Return the inputs and outputs of the engine; None is a dynamic dimension."""
        sides: tuple[list[TensorInfo], list[TensorInfo]] = ([], [])
        for index in range(self.engine.num_io_tensors):
            name = self.engine.get_tensor_name(index)
            shape = tuple(
                size if size >= 0 else None for size in self.engine.get_tensor_shape(name)
            )
            info = TensorInfo(
                name=name, shape=shape, dtype=_dtype(self.trt, self.engine.get_tensor_dtype(name))
            )
            is_input = self.engine.get_tensor_mode(name) == self.trt.TensorIOMode.INPUT
            sides[0 if is_input else 1].append(info)
        return tuple(sides[0]), tuple(sides[1])

    def set_shapes(self, context: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Set the shape of each input in a context."""
        for name, shape in shapes.items():
            if not context.set_input_shape(name, self.trt.Dims(list(shape))):
                raise EngineError(f"TensorRT refuses the shape {shape} for input {name}.")

    def describe(self, context: Any, profiles: Mapping[str, ShapeProfile]) -> dict[str, Any]:
        """Return the inspector's description for the engine's optimum shapes."""
        self.set_shapes(context, map_values(attrgetter("optimum"), profiles))
        context.infer_shapes()  # before it, the inspector shows no types of open shapes
        inspector = self.engine.create_engine_inspector()
        inspector.execution_context = context
        description: dict[str, Any] = json.loads(
            inspector.get_engine_information(self.trt.LayerInformationFormat.JSON),
            strict=False,  # TensorRT 8.6 separates names by control characters
        )
        return description

    def close(self) -> None:
        """Free engine and runtime, in this order, after all contexts."""
        self.engine = self._runtime = None


def _dtype(trt: Any, kind: Any) -> str:
    """Return the NumPy name of a TensorRT data type.

    Raises:
        EngineLoadError: NumPy lacks the type.
    """
    names = {
        "FLOAT": "float32",
        "HALF": "float16",
        "INT8": "int8",
        "INT32": "int32",
        "INT64": "int64",
        "UINT8": "uint8",
        "BOOL": "bool",
    }
    for member, name in names.items():
        if hasattr(trt.DataType, member) and kind == getattr(trt.DataType, member):
            return name
    raise EngineLoadError(
        f"The engine has an input or output of type {kind}, which NumPy lacks. Export float I/O."
    )
