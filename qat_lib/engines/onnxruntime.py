"""ONNX Runtime: numeric reference, and fallback without another backend.

The engine file is the ONNX graph after ONNX Runtime's optimizations: loading does not repeat them,
and the file lists the executed layers. Symmetric INT8 graphs are supported but seldom fast, since
the optimized CPU kernels require asymmetric UINT8 activations.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.engines.agreement import DITHER
from qat_lib.engines.backend import BuildRequest, BuiltEngine, EngineBackend
from qat_lib.engines.engine import Engine
from qat_lib.engines.environment import CPU_DEVICE_KEYS, cpu_device, cpu_refusal
from qat_lib.engines.loaded_tensors import check_tensors
from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.onnx_graph import bounded, check_file
from qat_lib.engines.onnxruntime_layers import read_optimized_graph
from qat_lib.engines.pair_sums import overflowing_nodes
from qat_lib.engines.request_pool import RequestLimits
from qat_lib.engines.spec import BuildSpec
from qat_lib.engines.values import Array, EngineLayer, TensorInfo, names_of
from qat_lib.errors import (
    BackendUnavailableError,
    ConfigError,
    EngineBuildError,
    EngineError,
    EngineLoadError,
)
from qat_lib.onnx_view.lookup_tables import with_moved_tables
from qat_lib.support.foreign_errors import describe_error
from qat_lib.support.mappings import map_values

_TIMED_RUNS = 50
_MOST_PARALLEL = 8
# Zero point of UINT8 weights with the values of INT8 weights.
_MIDDLE = 128


def reference_session(onnx: Path | str, *, threads: int = 0, moved: float = 0.0) -> Any:
    """Return a reference session that runs ``onnx`` node by node, without optimization.

    Args:
        onnx: the file.
        threads: CPU threads; 0 for all.
        moved: largest relative change of its lookup tables. Default 0: none.

    Raises:
        EngineBuildError: ONNX Runtime can't run the graph, or a tensor is too large.
    """
    check_file(Path(onnx))
    runtime = _onnxruntime()
    options = _options(0, threads)
    # Idle threads that spin would slow down the engine under test.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    model = with_moved_tables(onnx, moved) if moved else str(onnx)
    try:
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except _errors() as error:
        raise EngineBuildError(
            f"ONNX Runtime {runtime.__version__} can't run {onnx}: {describe_error(error)}."
        ) from error


class Reference:
    """Reference answers of an ONNX file from ONNX Runtime without optimizations.

    Raises:
        EngineBuildError: ONNX Runtime can't run the graph.
    """

    def __init__(self, onnx: Path) -> None:
        self._onnx, self._session = onnx, reference_session(onnx)
        self._names = [output.name for output in self._session.get_outputs()]
        self.version = str(_onnxruntime().__version__)

    def run(self, request: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name.

        Raises:
            EngineBuildError: ONNX Runtime can't run this request.
        """
        return self._answers(self._session, request)

    def moved(self, request: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name, with dithered lookup tables.

        Raises:
            EngineBuildError: ONNX Runtime can't run this request.
        """
        return self._answers(self._dithered, request)

    @cached_property
    def _dithered(self) -> Any:
        return reference_session(self._onnx, moved=DITHER)

    def _answers(self, session: Any, request: Mapping[str, Array]) -> dict[str, Array]:
        try:
            return dict(zip(self._names, session.run(self._names, dict(request)), strict=True))
        except _errors() as error:
            raise EngineBuildError(
                f"ONNX Runtime {self.version} can't run {self._onnx}: {describe_error(error)}."
            ) from error


def write_exact(onnx: Path, path: Path) -> None:
    """Write an ONNX file that ONNX Runtime computes exactly on every CPU, with the same values.

    INT8 weights whose sums of two products can exceed 16 bits become UINT8 with the zero point 128:
    kernels for them add in 32 bits. Other files are copied byte by byte.

    Args:
        onnx: the ONNX file.
        path: the new file.

    Raises:
        ExportError: the file can't be read.
    """
    import onnx as library

    from qat_lib.onnx_view.graph import OnnxGraph

    nodes = list(overflowing_nodes(OnnxGraph.load(onnx), in_window=True))
    if not nodes:
        shutil.copyfile(onnx, path)
        return
    model = library.load(str(onnx))
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    overflowing = {node.input(1) for node in nodes}
    readers = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
    shifted = {node.input[0] for node in readers if overflowing & set(node.output)}
    for name in shifted:
        values = library.numpy_helper.to_array(constants[name]).astype(np.int16) + _MIDDLE
        stored = library.numpy_helper.from_array(values.astype(np.uint8), name)
        constants[name].CopyFrom(stored)
    for node in readers:
        if node.input[0] in shifted:
            middle = np.full(tuple(constants[node.input[1]].dims), _MIDDLE, np.uint8)
            zero = library.numpy_helper.from_array(middle, f"{node.output[0]}/zero_point")
            model.graph.initializer.append(zero)
            del node.input[2:]
            node.input.append(zero.name)
    path.write_bytes(model.SerializeToString())


class OnnxRuntimeBackend(EngineBackend):
    """ONNX Runtime on this machine's CPU."""

    device_keys = CPU_DEVICE_KEYS
    rebuilds = True
    title = "ONNX Runtime"
    packages = "'qatline[engine]'"
    capabilities = frozenset({"cpu", "unsigned", "int4"})

    def version(self) -> str:
        """Return ONNX Runtime's version."""
        return str(_onnxruntime().__version__)

    def device(self) -> Mapping[str, Any]:
        """Describe the CPU."""
        return cpu_device()

    def float_precisions(self) -> tuple[str, ...]:
        """Return fp32, since ONNX Runtime computes in the types of the graph."""
        return ("fp32",)

    def build(self, request: BuildRequest) -> BuiltEngine:
        """Optimize the graph and keep the result."""
        if request.spec.float_precision != "fp32":
            raise ConfigError(
                "The onnxruntime backend computes in the types of the graph; float_precision must "
                f"be fp32. Received: {request.spec.float_precision}. Export an FP16 graph, or take "
                "another backend."
            )
        from qat_lib.onnx_view.graph import OnnxGraph

        runtime = _onnxruntime()
        with tempfile.TemporaryDirectory(prefix="qatline-ort-") as directory:
            optimized = Path(directory) / "optimized.onnx"
            options = _options(request.spec.optimization_level, request.spec.threads)
            options.optimized_model_filepath = str(optimized)
            if any(overflowing_nodes(OnnxGraph.load(request.onnx), in_window=True)):
                # Stores weights as UINT8, for kernels with 32-bit sums, which are slower. Without
                # effect on CPUs with VNNI.
                options.add_session_config_entry("session.x64quantprecision", "1")
            try:
                runtime.InferenceSession(
                    str(request.onnx), options, providers=["CPUExecutionProvider"]
                )
            except _errors() as error:
                raise EngineBuildError(
                    f"ONNX Runtime {self.version()} can't run {request.onnx}: {describe_error(error)}. Verify the "
                    "graph first."
                ) from error
            data = optimized.read_bytes()
        layers = read_optimized_graph(data, request.graph.nodes)
        return BuiltEngine(
            data=data,
            device=self.device(),
            inputs=bounded(request.graph.inputs, request.spec),
            outputs=request.graph.outputs,
            layers=tuple(layers),
        )

    def refusal(self, manifest: EngineManifest) -> str | None:
        """Reject another version or architecture: optimized graphs contain special kernels."""
        return cpu_refusal(self.title, self.version(), manifest)

    def open(
        self, data: bytes, manifest: EngineManifest, limits: RequestLimits | None = None
    ) -> Engine:
        """Open a session on the optimized graph."""
        return OnnxRuntimeEngine(data, manifest, limits)


BACKEND = OnnxRuntimeBackend


class OnnxRuntimeEngine(Engine):
    """A session on an optimized graph."""

    def __init__(self, data: bytes, manifest: EngineManifest, limits: RequestLimits | None) -> None:
        super().__init__(manifest)
        self._data = data
        self._spec = BuildSpec.from_dict(manifest.spec)
        # Level 0: the file already contains the optimized graph.
        try:
            self._session = _onnxruntime().InferenceSession(
                data, _options(0, self._spec.threads), providers=["CPUExecutionProvider"]
            )
        except _errors() as error:
            raise EngineLoadError(
                f"ONNX Runtime {manifest.backend_version} refuses the engine file: {describe_error(error)}. Build "
                "the engine again."
            ) from error
        check_tensors(
            manifest,
            _tensor_infos(self._session.get_inputs()),
            _tensor_infos(self._session.get_outputs()),
        )
        self._names = names_of(manifest.inputs)
        self._results = names_of(manifest.outputs)
        run = self._session.run  # thread-safe: all requests share the session
        self._open_requests(lambda: run, min(max(os.cpu_count() or 1, 2), _MOST_PARALLEL), limits)

    def _free(self, requests: list[Any]) -> None:
        requests.clear()
        self._session = None

    def _run(self, request: Any, values: list[Array]) -> dict[str, Array]:
        try:
            results = request(self._results, dict(zip(self._names, values, strict=True)))
        except _errors() as error:
            raise EngineError(
                f"ONNX Runtime failed on the batch: {describe_error(error)}."
            ) from error
        return dict(zip(self._results, results, strict=True))

    def _layers(
        self,
        request: Any,  # noqa: ARG002  Engine's; the layers are those of every request
        timed: bool,
    ) -> list[EngineLayer]:
        layers = read_optimized_graph(self._data, self.manifest.nodes)
        if not timed:
            return layers
        smallest = self._spec.shapes[self.inputs[0].name].minimum
        batch = self.random_batch(smallest[0] if smallest else 1)
        return _with_times(layers, _layer_times(self._data, self._spec.threads, batch))


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendUnavailableError(
            f"The onnxruntime backend needs the onnxruntime package ({error}). "
            "Install it with: pip install 'qatline[engine]'"
        ) from error
    return onnxruntime


def _errors() -> tuple[type[Exception], ...]:
    """Return ONNX Runtime's exception types; their only common base is ``Exception``."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    kinds = (
        "Fail",
        "InvalidArgument",
        "InvalidGraph",
        "InvalidProtobuf",
        "NoSuchFile",
        "NotImplemented",
    )
    own = (getattr(state, kind, None) for kind in (*kinds, "RuntimeException", "EPFail", "NoModel"))
    return (RuntimeError, *(kind for kind in own if kind is not None))


def _options(level: int, threads: int) -> Any:
    runtime = _onnxruntime()
    levels = runtime.GraphOptimizationLevel
    options = runtime.SessionOptions()
    options.graph_optimization_level = (
        levels.ORT_DISABLE_ALL,
        levels.ORT_ENABLE_BASIC,
        levels.ORT_ENABLE_EXTENDED,
        levels.ORT_ENABLE_ALL,
    )[min(level, 3)]
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors are also raised as exceptions
    return options


def _tensor_infos(arguments: Sequence[Any]) -> list[TensorInfo]:
    """Return the inputs or outputs of a session, with C names translated to NumPy dtypes."""
    names = {"float": "float32", "double": "float64"}
    infos = []
    for argument in arguments:
        kind = argument.type.removeprefix("tensor(").removesuffix(")")
        shape = tuple(size if isinstance(size, int) else None for size in argument.shape)
        infos.append(TensorInfo(name=argument.name, shape=shape, dtype=names.get(kind, kind)))
    return infos


def _layer_times(data: bytes, threads: int, batch: Mapping[str, Array]) -> dict[str, float]:
    """Return the mean milliseconds of each node from ONNX Runtime's profile."""
    with tempfile.TemporaryDirectory(prefix="qatline-ort-") as directory:
        options = _options(0, threads)
        # A separate session: profiling can't be enabled on an existing one.
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(directory) / "profile")
        session = _onnxruntime().InferenceSession(data, options, providers=["CPUExecutionProvider"])
        for _ in range(_TIMED_RUNS):
            session.run(None, batch)
        events = json.loads(Path(session.end_profiling()).read_text())
    totals: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            totals.setdefault(event["name"].removesuffix("_kernel_time"), []).append(
                event["dur"] / 1e3
            )
    return map_values(statistics.fmean, totals)


def _with_times(layers: list[EngineLayer], times: Mapping[str, float]) -> list[EngineLayer]:
    return [replace(layer, time_ms=times.get(layer.name)) for layer in layers]
