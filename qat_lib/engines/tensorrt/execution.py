"""GPU request: execution context, stream, and buffers for the largest batch."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from operator import attrgetter
from typing import Any

import numpy as np

from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.spec import ShapeProfile
from qat_lib.engines.tensorrt.callbacks import BuildLog, make_profiler
from qat_lib.engines.tensorrt.cuda import Bytes, Device
from qat_lib.engines.tensorrt.loaded_plan import LoadedPlan
from qat_lib.engines.values import Array, TensorInfo, names_of
from qat_lib.errors import EngineError
from qat_lib.support.mappings import map_values

logger = logging.getLogger(__name__)

_TIMED_RUNS = 20
_WARMUP_RUNS = 3


class _Buffer:
    """Device and page-locked host memory for one input or output."""

    def __init__(self, device: Device, info: TensorInfo, size: int, stack: ExitStack) -> None:
        self.info = info
        self.dtype = np.dtype(info.dtype)
        self.address = device.allocate(size)
        stack.callback(device.free, self.address)
        self._host = device.pinned(size)
        stack.callback(device.free_pinned, self._host)

    def part(self, count: int) -> Bytes:
        """Return the first bytes of the host memory, for ``count`` elements."""
        return self._host[: count * self.dtype.itemsize]


class Execution:
    """Resources of one thread for running batches concurrently with other threads.

    Args:
        plan: the deserialized engine.
        device: the GPU.
        manifest: the engine's manifest.
        profiles: the shape profile of each input.
        log: log with TensorRT's messages.
    """

    def __init__(
        self,
        plan: LoadedPlan,
        device: Device,
        manifest: EngineManifest,
        profiles: Mapping[str, ShapeProfile],
        log: BuildLog,
    ) -> None:
        self._plan, self._device, self._profiles, self._log = plan, device, profiles, log
        self._inputs, self._outputs = manifest.inputs, manifest.outputs
        self.context: Any = None
        self._shape: tuple[tuple[int, ...], ...] = ()
        self._resources = ExitStack()
        try:
            self._prepare()
        except BaseException:  # device memory is not garbage-collected
            self.close()
            raise

    def close(self) -> None:
        """Free the context, the stream and the buffers."""
        self.context = None
        self._resources.close()

    def run(self, values: list[Array]) -> dict[str, Array]:
        """Run one batch."""
        self._set_shapes(values)
        self._copy_in(values)
        self._enqueue()
        counts = self._copy_out()
        self._device.synchronize(self._stream)
        return self._results(counts)

    def _prepare(self) -> None:
        """Allocate buffers for the largest shapes and set their addresses in the context."""
        self.context = self._plan.create_context()
        self._stream = self._device.create_stream()
        self._resources.callback(self._device.destroy_stream, self._stream)
        self._plan.set_shapes(self.context, map_values(attrgetter("maximum"), self._profiles))
        self._buffers = {}
        for info in (*self._inputs, *self._outputs):
            count = math.prod(self.context.get_tensor_shape(info.name))
            size = count * np.dtype(info.dtype).itemsize
            buffer = _Buffer(self._device, info, size, self._resources)
            self.context.set_tensor_address(info.name, buffer.address)
            self._buffers[info.name] = buffer

    def _set_shapes(self, values: list[Array]) -> None:
        shape = tuple(map(np.shape, values))
        # Setting shapes makes TensorRT recompute its state, so equal shapes are skipped.
        if shape != self._shape:
            self._plan.set_shapes(
                self.context, dict(zip(names_of(self._inputs), shape, strict=True))
            )
            self._shape = shape
            self._output_shapes = {}
            for name in names_of(self._outputs):
                self._output_shapes[name] = tuple(self.context.get_tensor_shape(name))

    def _copy_in(self, values: list[Array]) -> None:
        for info, value in zip(self._inputs, values, strict=True):
            buffer = self._buffers[info.name]
            host = buffer.part(value.size)
            np.copyto(host.view(buffer.dtype), value.reshape(-1))
            self._device.to_device(buffer.address, host, self._stream)

    def _enqueue(self) -> None:
        if not self.context.execute_async_v3(self._stream):
            raise EngineError(f"TensorRT failed on the batch. {' '.join(self._log.errors()[-3:])}")

    def _copy_out(self) -> dict[str, int]:
        counts = map_values(math.prod, self._output_shapes)
        for name, count in counts.items():
            buffer = self._buffers[name]
            self._device.to_host(buffer.part(count), buffer.address, self._stream)
        return counts

    def _results(self, counts: Mapping[str, int]) -> dict[str, Array]:
        results = {}
        for name, count in counts.items():
            buffer = self._buffers[name]
            results[name] = (
                # A copy: the next batch overwrites the host buffer.
                buffer.part(count).view(buffer.dtype).reshape(self._output_shapes[name]).copy()
            )
        return results

    # ------------------------------------------------------------------ timing
    def timed(self, values: list[Array], stack: ExitStack) -> tuple[Callable[[], float], bool]:
        """Return a function that runs ``values`` once and returns the seconds on the device.

        Args:
            values: the batch.
            stack: owner of the function's resources.

        Returns:
            The function, and whether it replays a CUDA graph.
        """
        self._set_shapes(values)
        graph = self._capture(stack)
        start, end = (self._event(stack) for _ in range(2))
        return lambda: self._timed_request(values, graph, start, end), graph is not None

    def _timed_request(self, values: list[Array], graph: int | None, start: int, end: int) -> float:
        """Run one request and return its seconds on the device."""
        self._copy_in(values)
        self._device.record(start, self._stream)
        if graph is None:
            self._enqueue()
        else:
            self._device.launch(graph, self._stream)
        self._device.record(end, self._stream)
        counts = self._copy_out()
        self._device.spin(self._stream)
        self._results(counts)
        return self._device.elapsed_ms(start, end) / 1e3

    def _event(self, stack: ExitStack) -> int:
        event = self._device.create_event()
        stack.callback(self._device.destroy_event, event)
        return event

    def _capture(self, stack: ExitStack) -> int | None:
        """Return a CUDA graph of one execution; None if the capture fails."""
        # TensorRT updates its state in the first run with new shapes, which must not be captured.
        for _ in range(_WARMUP_RUNS):
            self._enqueue()
        self._device.synchronize(self._stream)
        self._device.begin_capture(self._stream)
        try:
            self._enqueue()
            failure = None
        except EngineError as error:
            failure = error
        try:
            # Also after an error: the stream would otherwise remain in capture mode.
            graph = self._device.end_capture(self._stream)
        except EngineError as error:
            failure = failure or error
        if failure is not None:
            logger.info("the engine runs without a CUDA graph: %s", failure)
            return None
        stack.callback(self._device.destroy_graph, graph)
        return graph

    # ------------------------------------------------------------------ layers
    def describe(self) -> dict[str, Any]:
        """Return the inspector's description for the engine's optimum shapes."""
        self._shape = ()
        return self._plan.describe(self.context, self._profiles)

    def layer_times(self) -> dict[str, float]:
        """Return the mean milliseconds of each layer over several profiled runs."""
        self._plan.set_shapes(self.context, map_values(attrgetter("optimum"), self._profiles))
        self._shape = ()
        collected: dict[str, list[float]] = {}
        profiler = self.context.profiler = make_profiler(self._plan.trt, collected)
        for _ in range(_TIMED_RUNS):
            self._enqueue()
            self._device.synchronize(self._stream)
        # A profiler can't be removed from a context, so replace the context.
        self.context = None
        self.context = self._plan.create_context()
        del profiler
        for name, buffer in self._buffers.items():
            self.context.set_tensor_address(name, buffer.address)
        return map_values(statistics.fmean, collected)
