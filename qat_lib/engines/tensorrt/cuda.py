"""CUDA calls of an engine: memory, streams, events and graphs.

All device access goes through ``Device``, so that its users can be tested without a GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qat_lib.errors import BackendUnavailableError, EngineError

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """Description of the GPU.

    Args:
        name: such as ``NVIDIA A100-SXM4-40GB``.
        compute_capability: such as ``8.0``.
        driver: version of the kernel driver, such as ``550.54.15``; empty if unreadable.
        cuda: largest CUDA version supported by the driver, such as ``12.4``.
        total_bytes: its memory, in bytes.
    """

    name: str
    compute_capability: str
    driver: str
    cuda: str
    total_bytes: int


class Device(Protocol):
    """Interface of a GPU; addresses, streams, events and graphs are integer handles."""

    def info(self) -> DeviceInfo:
        """Describe the GPU; raise BackendUnavailableError without one."""

    def allocate(self, size: int) -> int:
        """Return the address of ``size`` new bytes on the device."""

    def free(self, address: int) -> None:
        """Free memory from ``allocate``."""

    def pinned(self, size: int) -> Bytes:
        """Return ``size`` bytes of page-locked host memory."""

    def free_pinned(self, memory: Bytes) -> None:
        """Free memory from ``pinned``."""

    def create_stream(self) -> int:
        """Return a new stream without synchronization with the default stream."""

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream."""

    def synchronize(self, stream: int) -> None:
        """Wait for all work on ``stream``."""

    def spin(self, stream: int) -> None:
        """Wait by polling, which occupies a CPU core but avoids the wake-up latency."""

    def to_device(self, address: int, source: Bytes, stream: int) -> None:
        """Copy page-locked memory to the device, in stream order."""

    def to_host(self, target: Bytes, address: int, stream: int) -> None:
        """Copy from the device into page-locked memory, in stream order."""

    def create_event(self) -> int:
        """Return a new event."""

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""

    def record(self, event: int, stream: int) -> None:
        """Record ``event`` in ``stream``."""

    def elapsed_ms(self, start: int, end: int) -> float:
        """Return the milliseconds between two recorded events."""

    def begin_capture(self, stream: int) -> None:
        """Begin to capture the work on ``stream`` into a graph."""

    def end_capture(self, stream: int) -> int:
        """End the capture and return the executable graph."""

    def launch(self, graph: int, stream: int) -> None:
        """Launch an executable graph."""

    def destroy_graph(self, graph: int) -> None:
        """Destroy an executable graph."""


class CudaDevice:
    """The first visible GPU, through ``cuda.bindings.runtime`` of cuda-python."""

    def info(self) -> DeviceInfo:
        """Describe the GPU."""
        runtime = _runtime()
        status, count = runtime.cudaGetDeviceCount()
        if status != runtime.cudaError_t.cudaSuccess or not count:
            raise BackendUnavailableError(
                "TensorRT needs an NVIDIA GPU and its driver; CUDA says: "
                f"{_text(runtime, status)}. Check nvidia-smi, and in a container that the GPU is "
                "passed in."
            )
        properties = self._call("cudaGetDeviceProperties", 0)
        supported = self._call("cudaDriverGetVersion")
        return DeviceInfo(
            name=bytes(properties.name).split(b"\0")[0].decode(),
            compute_capability=f"{properties.major}.{properties.minor}",
            driver=_kernel_driver(),
            cuda=f"{supported // 1000}.{supported % 1000 // 10}",
            total_bytes=int(properties.totalGlobalMem),
        )

    def allocate(self, size: int) -> int:
        """Return the address of new device memory."""
        return int(self._call("cudaMalloc", size))

    def free(self, address: int) -> None:
        """Free device memory."""
        self._call("cudaFree", address)

    def pinned(self, size: int) -> Bytes:
        """Return page-locked host memory as an array."""
        import ctypes

        address = int(self._call("cudaMallocHost", size))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def free_pinned(self, memory: Bytes) -> None:
        """Free page-locked host memory."""
        self._call("cudaFreeHost", memory.ctypes.data)

    def create_stream(self) -> int:
        """Return a new non-blocking stream."""
        return int(self._call("cudaStreamCreateWithFlags", _runtime().cudaStreamNonBlocking))

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream."""
        self._call("cudaStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        """Wait for a stream."""
        self._call("cudaStreamSynchronize", stream)

    def spin(self, stream: int) -> None:
        """Poll a stream until it is done."""
        runtime = _runtime()
        while runtime.cudaStreamQuery(stream)[0] == runtime.cudaError_t.cudaErrorNotReady:
            pass
        self.synchronize(stream)

    def to_device(self, address: int, source: Bytes, stream: int) -> None:
        """Copy host memory to the device."""
        kind = _runtime().cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", address, source.ctypes.data, source.nbytes, kind, stream)

    def to_host(self, target: Bytes, address: int, stream: int) -> None:
        """Copy device memory to the host."""
        kind = _runtime().cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", target.ctypes.data, address, target.nbytes, kind, stream)

    def create_event(self) -> int:
        """Return a new event."""
        return int(self._call("cudaEventCreate"))

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        self._call("cudaEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        """Record an event."""
        self._call("cudaEventRecord", event, stream)

    def elapsed_ms(self, start: int, end: int) -> float:
        """Return the milliseconds between two events."""
        return float(self._call("cudaEventElapsedTime", start, end))

    def begin_capture(self, stream: int) -> None:
        """Begin a capture."""
        # Thread-local: other threads may allocate memory during the capture.
        mode = _runtime().cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int) -> int:
        """End a capture and make its graph executable."""
        graph = self._call("cudaStreamEndCapture", stream)
        executable = int(self._call("cudaGraphInstantiate", graph, 0))
        self._call("cudaGraphDestroy", graph)
        return executable

    def launch(self, graph: int, stream: int) -> None:
        """Launch a graph."""
        self._call("cudaGraphLaunch", graph, stream)

    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph."""
        self._call("cudaGraphExecDestroy", graph)

    def _call(self, function: str, *arguments: Any) -> Any:
        """Call the CUDA runtime and return its result without the status.

        Raises:
            EngineError: the call failed.
        """
        runtime = _runtime()
        status, *result = getattr(runtime, function)(*arguments)
        if status == runtime.cudaError_t.cudaErrorMemoryAllocation:
            raise EngineError(
                f"The GPU is out of memory ({function} of {arguments[0]} bytes). Close other "
                "programs on the GPU, or build the engine with a smaller largest batch or "
                "workspace."
            )
        if status != runtime.cudaError_t.cudaSuccess:
            raise EngineError(f"CUDA failed in {function}: {_text(runtime, status)}.")
        return result[0] if result else None


def _runtime() -> Any:
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise BackendUnavailableError(
            f"The tensorrt backend needs the cuda-python package ({error}). "
            "Install it with: pip install 'qatline[tensorrt]'"
        ) from error
    return runtime


def _text(runtime: Any, status: Any) -> str:
    _, text = runtime.cudaGetErrorString(status)
    return text.decode() if isinstance(text, bytes) else str(text)


def _kernel_driver() -> str:
    try:
        match = re.search(
            r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)",
            Path("/proc/driver/nvidia/version").read_text(),
        )
    except OSError:
        return ""
    return match[1] if match else ""
