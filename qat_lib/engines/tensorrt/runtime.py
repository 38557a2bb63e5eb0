"""Run a TensorRT engine: buffers for the largest batch, one stream, requests one at a time."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from qat_lib.engines.engine import Batch, Engine
from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.spec import parse_profile
from qat_lib.engines.tensorrt.callbacks import BuildLog, make_profiler
from qat_lib.engines.tensorrt.cuda import Bytes, Device
from qat_lib.engines.tensorrt.inspector import read_layers
from qat_lib.engines.tensorrt.loaded_plan import LoadedPlan
from qat_lib.engines.timing import Measured, time_requests, warm_up
from qat_lib.engines.values import Array, EngineLayer, TensorInfo
from qat_lib.errors import EngineError, EngineLoadError

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
        """Return the first bytes of the host memory: those of ``count`` elements."""
        return self._host[: count * self.dtype.itemsize]


class TensorRTEngine(Engine):
    """A TensorRT engine on the first visible GPU."""

    def __init__(self, trt: Any, device: Device, data: bytes, manifest: EngineManifest) -> None:
        super().__init__(manifest)
        self._trt, self._device = trt, device
        self._log = BuildLog()
        self._lock = threading.Lock()
        self._resources = ExitStack()
        self._shape: tuple[tuple[int, ...], ...] = ()
        version_compatible = bool(manifest.spec.get("version_compatible"))
        self._plan: LoadedPlan | None = LoadedPlan(trt, data, self._log, version_compatible=version_compatible)
        self._profiles = {name: parse_profile(text) for name, text in manifest.spec["shapes"].items()}
        try:
            self._prepare()
        except BaseException:  # memory on the device is not freed by anything else
            self._resources.close()
            raise

    def close(self) -> None:
        """Free the engine and its memory on the device."""
        with self._lock:
            if self._plan is not None:
                self._plan.close()
                self._plan = None
            self._resources.close()

    # ------------------------------------------------------------------ requests
    def _run(self, values: list[Array]) -> dict[str, Array]:
        with self._lock:
            self._set_shapes(values)
            self._copy_in(values)
            self._enqueue()
            counts = self._copy_out()
            self._device.synchronize(self._stream)
            return self._results(counts)

    def _open_plan(self) -> LoadedPlan:
        if self._plan is None:
            raise EngineLoadError("The engine is closed. Load it again with load_engine.")
        return self._plan

    def _prepare(self) -> None:
        """Allocate buffers for the largest shapes and tell the context where they are."""
        plan = self._open_plan()
        self._stream = self._device.create_stream()
        self._resources.callback(self._device.destroy_stream, self._stream)
        plan.set_shapes({name: profile.maximum for name, profile in self._profiles.items()})
        self._buffers = {}
        for info in (*self.inputs, *self.outputs):
            count = math.prod(plan.context.get_tensor_shape(info.name))
            size = count * np.dtype(info.dtype).itemsize
            buffer = _Buffer(self._device, info, size, self._resources)
            plan.context.set_tensor_address(info.name, buffer.address)
            self._buffers[info.name] = buffer

    def _set_shapes(self, values: list[Array]) -> None:
        plan = self._open_plan()
        shape = tuple(value.shape for value in values)
        if shape != self._shape:
            plan.set_shapes({info.name: value.shape for info, value in zip(self.inputs, values, strict=True)})
            self._shape = shape
            self._output_shapes = {info.name: tuple(plan.context.get_tensor_shape(info.name)) for info in self.outputs}

    def _copy_in(self, values: list[Array]) -> None:
        for info, value in zip(self.inputs, values, strict=True):
            buffer = self._buffers[info.name]
            host = buffer.part(value.size)
            np.copyto(host.view(buffer.dtype), value.reshape(-1))
            self._device.to_device(buffer.address, host, self._stream)

    def _enqueue(self) -> None:
        if not self._open_plan().context.execute_async_v3(self._stream):
            raise EngineError(f"TensorRT failed on the batch. {' '.join(self._log.errors()[-3:])}")

    def _copy_out(self) -> dict[str, int]:
        counts = {name: math.prod(shape) for name, shape in self._output_shapes.items()}
        for name, count in counts.items():
            buffer = self._buffers[name]
            self._device.to_host(buffer.part(count), buffer.address, self._stream)
        return counts

    def _results(self, counts: Mapping[str, int]) -> dict[str, Array]:
        results = {}
        for name, count in counts.items():
            buffer = self._buffers[name]
            results[name] = buffer.part(count).view(buffer.dtype).reshape(self._output_shapes[name]).copy()
        return results

    # ------------------------------------------------------------------ benchmark
    def measure(self, batch: Batch, *, seconds: float, warmup_seconds: float = 0.0) -> Measured:
        """Measure as ``trtexec`` does: warm-up, then compute timed by events, from a CUDA graph where possible."""
        values = self._checked(batch)
        with self._lock, ExitStack() as stack:
            self._set_shapes(values)
            graph = self._capture(stack)
            start, end = (self._event(stack) for _ in range(2))
            compute: list[float] = []

            def send() -> None:
                compute.append(self._timed_request(values, graph, start, end))

            warm_up(send, warmup_seconds)
            compute.clear()
            whole = time_requests(send, seconds)
        return replace(whole, compute=compute, cuda_graph=graph is not None)

    def _checked(self, batch: Batch) -> list[Array]:
        if self._single is not None and isinstance(batch, np.ndarray):
            return [self._single(batch)]
        return self._arranged(batch)

    def _timed_request(self, values: list[Array], graph: int | None, start: int, end: int) -> float:
        """Run one request and return the seconds that it computed on the device."""
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
        """Return a CUDA graph of one execution; None where the engine can't be captured."""
        for _ in range(_WARMUP_RUNS):  # TensorRT updates its own state at the first run with new shapes
            self._enqueue()
        self._device.synchronize(self._stream)
        self._device.begin_capture(self._stream)
        try:
            self._enqueue()
            failure = None
        except EngineError as error:
            failure = error
        try:
            graph = self._device.end_capture(self._stream)
        except EngineError as error:
            failure = failure or error
        if failure is not None:
            logger.info("the engine runs without a CUDA graph: %s", failure)
            return None
        stack.callback(self._device.destroy_graph, graph)
        return graph

    # ------------------------------------------------------------------ layers
    def _layers(self, timed: bool) -> list[EngineLayer]:
        with self._lock:
            plan = self._open_plan()
            description = plan.describe(self._profiles)
            self._shape = ()
            times = self._profile() if timed else {}
        nodes = self.manifest.nodes
        return read_layers(description, nodes=nodes, weighted=self.manifest.weighted_nodes, times=times)

    def _profile(self) -> dict[str, float]:
        """Return the mean milliseconds of each layer over some runs with a profiler attached."""
        plan = self._open_plan()
        collected: dict[str, list[float]] = {}
        profiler = plan.context.profiler = make_profiler(self._trt, collected)
        for _ in range(_TIMED_RUNS):
            self._enqueue()
            self._device.synchronize(self._stream)
        # A profiler can't be taken off a context again: give the engine a new one.
        plan.context = plan.engine.create_execution_context()
        del profiler
        if plan.context is None:
            raise EngineError("TensorRT can't make a second execution context, most often for lack of GPU memory.")
        for name, buffer in self._buffers.items():
            plan.context.set_tensor_address(name, buffer.address)
        return {name: sum(times) / len(times) for name, times in collected.items()}
