"""The CUDA seam over a fake ``cuda.bindings.runtime``.

Statuses become errors, results come back bare.
"""

# ruff: noqa: N802, N815  (the names are those of the CUDA runtime)
from __future__ import annotations

import ctypes
import enum
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from qat_lib.engines.tensorrt import cuda
from qat_lib.engines.tensorrt.cuda import CudaDevice
from qat_lib.errors import BackendUnavailableError, EngineError


class Status(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorNoDevice = 100
    cudaErrorNotReady = 600


class Runtime(ModuleType):
    """Calls with the argument counts of cuda-bindings 12.9.

    All of them take handles as numbers.
    """

    cudaError_t = Status
    cudaStreamNonBlocking = 1
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice="h2d", cudaMemcpyDeviceToHost="d2h")
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal="local")

    def __init__(self) -> None:
        super().__init__("cuda.bindings.runtime")
        self.calls: list[tuple[Any, ...]] = []
        self.status = Status.cudaSuccess
        self.devices = 1
        self.polls = 0
        self.memory: dict[int, Any] = {}
        results = {
            "cudaDriverGetVersion": (0, lambda: 12040),
            "cudaMalloc": (1, lambda size: 4096),
            "cudaFree": (1, None),
            "cudaMallocHost": (1, self._host),
            "cudaFreeHost": (1, None),
            "cudaStreamCreateWithFlags": (1, lambda flags: 11),
            "cudaStreamDestroy": (1, None),
            "cudaStreamSynchronize": (1, None),
            "cudaMemcpyAsync": (5, None),
            "cudaEventCreate": (0, lambda: 12),
            "cudaEventDestroy": (1, None),
            "cudaEventRecord": (2, None),
            "cudaEventElapsedTime": (2, lambda start, end: 1.5),
            "cudaStreamBeginCapture": (2, None),
            "cudaStreamEndCapture": (1, lambda stream: 13),
            "cudaGraphInstantiate": (2, lambda graph, flags: 14),
            "cudaGraphDestroy": (1, None),
            "cudaGraphLaunch": (2, None),
            "cudaGraphExecDestroy": (1, None),
        }
        for name, (count, result) in results.items():
            setattr(self, name, self._call(name, count, result))

    def _host(self, size: int) -> int:
        self.buffer = ctypes.create_string_buffer(size)
        return ctypes.addressof(self.buffer)

    def _call(self, name: str, count: int, result: Any) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            assert len(arguments) == count
            self.calls.append((name, *arguments))
            return (self.status,) if result is None else (self.status, result(*arguments))

        return call

    def cudaStreamQuery(self, stream: int) -> tuple[Status]:
        self.polls += 1
        return (Status.cudaSuccess if self.polls > 2 else Status.cudaErrorNotReady,)

    def cudaGetDeviceCount(self) -> tuple[Status, int]:
        return (Status.cudaSuccess if self.devices else Status.cudaErrorNoDevice), self.devices

    def cudaGetDeviceProperties(self, device: int) -> tuple[Status, Any]:
        return self.status, SimpleNamespace(
            name=b"Fake H200\0\0", major=9, minor=0, totalGlobalMem=2**37
        )

    def cudaGetErrorString(self, status: Status) -> tuple[Status, bytes]:
        return Status.cudaSuccess, status.name.encode()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime()
    bindings = ModuleType("cuda.bindings")
    bindings.runtime = made  # type: ignore[attr-defined]
    for name, module in (
        ("cuda", ModuleType("cuda")),
        ("cuda.bindings", bindings),
        ("cuda.bindings.runtime", made),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_the_gpu_is_described(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_kernel_driver", lambda: "550.54")
    info = CudaDevice().info()
    assert (info.name, info.compute_capability, info.cuda, info.driver) == (
        "Fake H200",
        "9.0",
        "12.4",
        "550.54",
    )


def test_no_gpu_is_a_typed_error(runtime: Runtime) -> None:
    runtime.devices = 0
    with pytest.raises(
        BackendUnavailableError, match=r"CUDA says: cudaErrorNoDevice\. Check nvidia-smi"
    ):
        CudaDevice().info()


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(BackendUnavailableError, match=r"pip install 'qatline\[tensorrt\]'"):
        CudaDevice().info()


def test_out_of_memory_gives_advice(runtime: Runtime) -> None:
    runtime.status = Status.cudaErrorMemoryAllocation
    with pytest.raises(EngineError, match=r"out of memory \(cudaMalloc of 512 bytes\)"):
        CudaDevice().allocate(512)


def test_other_failures_carry_their_name(runtime: Runtime) -> None:
    runtime.status = Status.cudaErrorNoDevice
    with pytest.raises(
        EngineError, match="CUDA failed in cudaStreamSynchronize: cudaErrorNoDevice"
    ):
        CudaDevice().synchronize(1)


def test_a_whole_request(runtime: Runtime) -> None:
    """Every seam call once, in a captured graph request's order."""
    device = CudaDevice()
    stream, event, address = device.create_stream(), device.create_event(), device.allocate(16)
    memory = device.pinned(16)
    memory[:] = 7
    assert bytes(runtime.buffer) == b"\x07" * 16
    device.begin_capture(stream)
    graph = device.end_capture(stream)
    device.to_device(address, memory, stream)
    device.record(event, stream)
    device.launch(graph, stream)
    device.to_host(memory[:8], address, stream)
    device.spin(stream)
    assert runtime.polls == 3
    assert device.elapsed_ms(event, event) == 1.5
    device.destroy_graph(graph)
    device.destroy_event(event)
    device.free(address)
    device.free_pinned(memory)
    device.destroy_stream(stream)
    copies = [call for call in runtime.calls if call[0] == "cudaMemcpyAsync"]
    host = memory.ctypes.data
    assert copies == [
        ("cudaMemcpyAsync", 4096, host, 16, "h2d", 11),
        ("cudaMemcpyAsync", host, 4096, 8, "d2h", 11),
    ]
    assert ("cudaGraphLaunch", 14, 11) in runtime.calls
    assert ("cudaGraphDestroy", 13) in runtime.calls


def test_kernel_driver_version_is_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    )
    monkeypatch.setattr(cuda, "Path", lambda _: SimpleNamespace(read_text=lambda: text))
    assert cuda._kernel_driver() == "550.54.15"
