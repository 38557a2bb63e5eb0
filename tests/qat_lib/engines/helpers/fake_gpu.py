"""A host-memory GPU, and a script for the fake TensorRT.

The fake builds and runs real ONNX graphs on it. The fake engine executes through ONNX Runtime on
the bytes at the addresses it was given, so that the copies, shapes and addresses of the real
runtime code decide whether the numbers are right.
"""

# ruff: noqa: N802  (the methods carry the names of the TensorRT classes that they stand for)
from __future__ import annotations

import json
import re
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from fake_tensorrt import Script, make_fake

from qat_lib.engines.onnxruntime import reference_session
from qat_lib.engines.tensorrt.cuda import Bytes, DeviceInfo
from qat_lib.errors import BackendUnavailableError, EngineError

GPU = DeviceInfo(
    name="Fake A100", compute_capability="8.0", driver="550.54", cuda="12.4", total_bytes=2**34
)


class FakeDevice:
    """Device memory as host arrays by address; all resources are counted."""

    def __init__(self, info: DeviceInfo | None = GPU, *, capturable: bool = True) -> None:
        self._info = info
        self._capturable = capturable
        self._next = 1 << 20
        self._lock = threading.RLock()
        self.memory: dict[int, Bytes] = {}
        self.pinned_arrays: list[Bytes] = []
        self.handles: set[int] = set()
        self.synchronized = 0
        self.launches = 0
        self.capturing = False
        self.captured: Any = None
        self.limit = 2**30

    def info(self) -> DeviceInfo:
        if self._info is None:
            raise BackendUnavailableError(
                "TensorRT needs an NVIDIA GPU and its driver; CUDA says: no device."
            )
        return self._info

    @property
    def leaked(self) -> int:
        return len(self.memory) + len(self.pinned_arrays) + len(self.handles)

    def _new(self) -> int:
        with self._lock:
            self._next += 1 << 12
            return self._next

    def _handle(self) -> int:
        handle = self._new()
        self.handles.add(handle)
        return handle

    def allocate(self, size: int) -> int:
        if size > self.limit:
            raise EngineError("The GPU is out of memory")
        with self._lock:
            address = self._next = self._new() + (size // 4096 + 1) * 4096
        self.memory[address] = np.zeros(size, np.uint8)
        return address

    def free(self, address: int) -> None:
        del self.memory[address]

    def pinned(self, size: int) -> Bytes:
        self.pinned_arrays.append(np.zeros(size, np.uint8))
        return self.pinned_arrays[-1]

    def free_pinned(self, memory: Bytes) -> None:
        self.pinned_arrays = [array for array in self.pinned_arrays if array is not memory]

    def create_stream(self) -> int:
        return self._handle()

    def destroy_stream(self, stream: int) -> None:
        self.handles.remove(stream)

    def synchronize(self, stream: int) -> None:
        assert stream in self.handles
        self.synchronized += 1

    def spin(self, stream: int) -> None:
        self.synchronize(stream)

    def to_device(self, address: int, source: Bytes, stream: int) -> None:
        assert stream in self.handles
        self.memory[address][: source.size] = source

    def to_host(self, target: Bytes, address: int, stream: int) -> None:
        assert stream in self.handles
        target[:] = self.memory[address][: target.size]

    def create_event(self) -> int:
        return self._handle()

    def destroy_event(self, event: int) -> None:
        self.handles.remove(event)

    def record(self, event: int, stream: int) -> None:
        assert {event, stream} <= self.handles

    def elapsed_ms(self, start: int, end: int) -> float:
        assert {start, end} <= self.handles
        return 0.25

    def begin_capture(self, stream: int) -> None:
        self.capturing = True

    def end_capture(self, stream: int) -> int:
        self.capturing = False
        if not self._capturable:
            raise EngineError(
                "CUDA failed in cudaStreamEndCapture: operation not permitted when stream is capturing."
            )
        return self._handle()

    def launch(self, graph: int, stream: int) -> None:
        assert {graph, stream} <= self.handles
        self.launches += 1
        self.captured()

    def destroy_graph(self, graph: int) -> None:
        self.handles.remove(graph)


class FakeTensorRT:
    """A scripted fake version that parses and runs ONNX with ONNX Runtime.

    Args:
        version: a version with a snapshot.
        device: the GPU that engines run on.
    """

    def __init__(self, version: str, device: FakeDevice) -> None:
        self.script = Script()
        self.device = device
        self.steps = 2
        self.asked_to_stop = False
        self.logged: list[tuple[str, str]] = []
        self.parser_errors: list[dict[str, Any]] = []
        self.plan: bytes | None = b""
        self.description: dict[str, Any] | None = None
        self.contexts_left = 1000
        self.module = make_fake(version, self.script)
        self.major = int(version.split(".")[0])
        names = [name for name in dir(self) if name.startswith("_on_")]
        for name in names:
            owner, _, method = name.removeprefix("_on_").partition("__")
            self.script.behaviours[f"{owner}.{method}" if method else owner] = getattr(self, name)

    @property
    def calls(self) -> list[str]:
        return self.script.calls

    def _make(self, kind: str, **values: Any) -> Any:
        made = getattr(self.module, kind)
        made = made.__new__(made)
        made.__dict__.update(constructed=True, arguments=(), **values)
        return made

    # ------------------------------------------------------------------ build
    def _on_Builder(self, builder: Any, logger: Any) -> None:
        builder.__dict__["logger"] = logger

    def _on_OnnxParser(self, parser: Any, network: Any, logger: Any) -> None:
        self.parser = weakref.ref(parser)

    def _on_Builder__create_network(self, builder: Any, flags: int = 0) -> Any:
        self.network_flags = flags
        return self._make("INetworkDefinition")

    def _on_Builder__create_builder_config(self, builder: Any) -> Any:
        self.config = self._make("IBuilderConfig", flags=[], preview=[], cache=None, profiles=[])
        return self.config

    def _on_IBuilderConfig__set_preview_feature(
        self, config: Any, feature: Any, enable: bool
    ) -> None:
        if enable:
            config.__dict__["preview"].append(feature.name)

    def _on_Builder__create_optimization_profile(self, builder: Any) -> Any:
        return self._make("IOptimizationProfile", shapes={})

    def _on_OnnxParser__parse_from_file(self, parser: Any, model: str) -> bool:
        self.onnx = Path(model)
        return not self.parser_errors

    def _on_OnnxParser__num_errors(self, parser: Any) -> int:
        return len(self.parser_errors)

    def _on_OnnxParser__get_error(self, parser: Any, index: int) -> Any:
        return self._make("ParserError", facts=self.parser_errors[index])

    def _on_ParserError__desc(self, error: Any) -> str:
        return str(error.__dict__["facts"]["desc"])

    def _on_ParserError__node(self, error: Any) -> int:
        return int(error.__dict__["facts"]["index"])

    def _on_ParserError__node_name(self, error: Any) -> str:
        return str(error.__dict__["facts"]["name"])

    def _on_ParserError__node_operator(self, error: Any) -> str:
        return str(error.__dict__["facts"]["operator"])

    def _on_IBuilderConfig__set_flag(self, config: Any, flag: Any) -> None:
        config.__dict__["flags"].append(flag.name)

    def _on_IBuilderConfig__create_timing_cache(self, config: Any, data: bytes) -> Any:
        if data and not data.startswith(b"cache:"):
            return None
        return self._make(
            "ITimingCache", entries=set(filter(None, data.removeprefix(b"cache:").split(b";")))
        )

    def _on_IBuilderConfig__set_timing_cache(
        self, config: Any, cache: Any, ignore_mismatch: bool
    ) -> bool:
        cache.__dict__["of_a_build"] = True
        config.__dict__["cache"] = cache
        return True

    def _on_IBuilderConfig__get_timing_cache(self, config: Any) -> Any:
        return config.__dict__["cache"]

    def _on_ITimingCache__combine(self, cache: Any, other: Any, ignore_mismatch: bool) -> bool:
        if cache.__dict__.get("of_a_build"):  # as TensorRT 8.6
            return False
        cache.__dict__["entries"] |= other.__dict__["entries"]
        return True

    def _on_ITimingCache__serialize(self, cache: Any) -> Any:
        return self.module.IHostMemory(b"cache:" + b";".join(sorted(cache.__dict__["entries"])))

    def _on_IOptimizationProfile__set_shape(
        self, profile: Any, name: str, low: Any, best: Any, high: Any
    ) -> None:
        profile.__dict__["shapes"][name] = (tuple(low), tuple(best), tuple(high))

    def _on_IBuilderConfig__add_optimization_profile(self, config: Any, profile: Any) -> int:
        config.__dict__["profiles"].append(profile.__dict__["shapes"])
        return 0

    def _on_Builder__build_serialized_network(self, builder: Any, network: Any, config: Any) -> Any:
        assert self.parser() is not None, "the weights belong to the parser, which is gone"
        for level, message in self.logged:
            builder.__dict__["logger"].log(getattr(self.module.ILogger.Severity, level), message)
        monitor = config.progress_monitor if hasattr(self.module, "IProgressMonitor") else None
        if monitor is not None:
            monitor.phase_start("Building", None, self.steps)
            monitor.phase_start("Timing conv1", "Building", 1)
            for step in range(self.steps):
                if not monitor.step_complete("Building", step):
                    self.asked_to_stop = True
                    return None
            monitor.phase_finish("Timing conv1")
            monitor.phase_finish("Building")
        if config.__dict__["cache"] is not None:
            config.__dict__["cache"].__dict__["entries"].add(self.onnx.name.encode())
        if self.plan is None:
            return None
        # Up to 9 a context has an optimization profile for itself, unless the build asked for
        # sharing.
        shared = "PROFILE_SHARING_0806" in config.__dict__["preview"] or self.major >= 10
        return self.module.IHostMemory(
            (b"plan:shared:" if shared else b"plan:alone:") + str(self.onnx).encode()
        )

    # ------------------------------------------------------------------ run
    def _on_Runtime__deserialize_cuda_engine(self, runtime: Any, data: bytes) -> Any:
        if not data.startswith(b"plan:"):
            return None
        _, profiles, path = data.decode().split(":", 2)
        model = onnx.load(path, load_external_data=False)
        session = reference_session(path, threads=1)
        contexts: Any = weakref.WeakSet()
        return self._make(
            "ICudaEngine",
            graph=model.graph,
            session=session,
            shared=profiles == "shared",
            contexts=contexts,
        )

    def _values(self, engine: Any) -> list[tuple[Any, bool]]:
        graph = engine.__dict__["graph"]
        constants = {tensor.name for tensor in graph.initializer}
        inputs = [value for value in graph.input if value.name not in constants]
        return [(value, True) for value in inputs] + [(value, False) for value in graph.output]

    def _value(self, engine: Any, name: str) -> tuple[Any, bool]:
        return next(pair for pair in self._values(engine) if pair[0].name == name)

    def _on_ICudaEngine__num_io_tensors(self, engine: Any) -> int:
        return len(self._values(engine))

    def _on_ICudaEngine__device_memory_size(self, engine: Any) -> int:
        return 1 << 20

    def _on_ICudaEngine__device_memory_size_v2(self, engine: Any) -> int:
        return 1 << 20

    def _on_ICudaEngine__get_tensor_name(self, engine: Any, index: int) -> str:
        return str(self._values(engine)[index][0].name)

    def _on_ICudaEngine__get_tensor_mode(self, engine: Any, name: str) -> Any:
        mode = self.module.TensorIOMode
        return mode.INPUT if self._value(engine, name)[1] else mode.OUTPUT

    def _on_ICudaEngine__get_tensor_dtype(self, engine: Any, name: str) -> Any:
        return self.module.DataType.FLOAT

    def _on_ICudaEngine__get_tensor_shape(self, engine: Any, name: str) -> Any:
        dimensions = self._value(engine, name)[0].type.tensor_type.shape.dim
        return self.module.Dims(
            [dim.dim_value if dim.HasField("dim_value") else -1 for dim in dimensions]
        )

    def _on_ICudaEngine__create_execution_context(self, engine: Any) -> Any:
        if self.contexts_left == 0:
            return None
        self.contexts_left -= 1
        contexts = engine.__dict__["contexts"]
        has_profile = engine.__dict__["shared"] or not contexts
        context = self._make(
            "IExecutionContext",
            engine=engine,
            shapes={},
            inferred=False,
            addresses={},
            has_profile=has_profile,
        )
        contexts.add(context)
        return context

    def _on_IExecutionContext__set_input_shape(self, context: Any, name: str, shape: Any) -> bool:
        if not context.__dict__["has_profile"]:
            return False
        context.__dict__["shapes"][name] = tuple(shape)
        return True

    def _on_IExecutionContext__infer_shapes(self, context: Any) -> list[str]:
        context.__dict__["inferred"] = True
        return []

    def _on_IExecutionContext__get_tensor_shape(self, context: Any, name: str) -> Any:
        shapes = context.__dict__["shapes"]
        if name in shapes:
            return self.module.Dims(list(shapes[name]))
        batch = next(iter(shapes.values()))[0]
        declared = tuple(self._on_ICudaEngine__get_tensor_shape(context.__dict__["engine"], name))
        return self.module.Dims([batch, *declared[1:]])

    def _on_IExecutionContext__set_tensor_address(
        self, context: Any, name: str, address: int
    ) -> bool:
        context.__dict__["addresses"][name] = address
        return True

    def _on_IExecutionContext__execute_async_v3(self, context: Any, stream: int) -> bool:
        assert stream in self.device.handles
        self.device.captured = lambda: self._execute(context)
        if not self.device.capturing:
            assert not context.__dict__.get("running"), "a context serves one thread at a time"
            context.__dict__["running"] = True
            self._execute(context)
            context.__dict__["running"] = False
        profiler = context.profiler
        if profiler is not None:
            for layer in self._describe(context.__dict__["engine"])["Layers"]:
                profiler.report_layer_time(layer["Name"], 0.5)
        return True

    def _execute(self, context: Any) -> None:
        engine, addresses, shapes = (
            context.__dict__[key] for key in ("engine", "addresses", "shapes")
        )
        feeds, outputs = {}, []
        for value, is_input in self._values(engine):
            memory = self.device.memory[addresses[value.name]].view(np.float32)
            if is_input:
                shape = shapes[value.name]
                feeds[value.name] = memory[: int(np.prod(shape))].reshape(shape).copy()
            else:
                outputs.append((value.name, memory))
        results = engine.__dict__["session"].run([name for name, _ in outputs], feeds)
        for (_, memory), result in zip(outputs, results, strict=True):
            memory[: result.size] = result.reshape(-1)

    def _on_EngineInspector__get_engine_information(self, inspector: Any, kind: Any) -> str:
        context = inspector.execution_context.__dict__
        text = json.dumps(self.description or self._describe(context["engine"]))
        if not context["inferred"]:  # as TensorRT 8.6, which also writes control characters
            text = re.sub(r'(?<="Format/Datatype": ")[^"]+', "N/A due to dynamic shapes", text)
        return text.replace("\\u001e", "\x1e")

    def _describe(self, engine: Any) -> dict[str, Any]:
        """Describe the engine with every convolution in INT8 and no fusion."""
        int8, fp32 = (
            "Thirty-two wide channel vectorized row major Int8 format",
            "Row major linear FP32",
        )
        layers = []
        for node in engine.__dict__["graph"].node:
            weighted = node.op_type in ("Conv", "Gemm")
            layers.append(
                {
                    "Name": node.name,
                    "LayerType": "CaskConvolution" if weighted else node.op_type,
                    "Inputs": [{"Name": "x", "Format/Datatype": int8 if weighted else fp32}],
                    "Outputs": [{"Name": "y", "Format/Datatype": int8 if weighted else fp32}],
                    **({"Weights": {"Type": "Int8", "Count": 1}} if weighted else {}),
                    "Metadata": f"[ONNX Layer: {node.name}]\x1e[ONNX Layer: {node.name}]",
                }
            )
        return {"Layers": layers, "Bindings": ["input", "logits"]}
