"""INT8 engines on a CPU: compiled OpenVINO models.

The precision of each layer is read from the execution graph of the imported model, the model that
answers requests. The float precision is always set: by default OpenVINO computes in bfloat16 on
CPUs that support it, different from the FP32 of the training, and without the fusion of residual
Adds in INT8 graphs.

INT8 graphs are compiled without OpenVINO's "snippets". Snippets claim chains of elementwise layers,
including residual Adds and activations that otherwise fuse into the previous INT8 convolution.
Speedups without snippets, measured with OpenVINO 2026.4 as medians at batch 1, in turns: ResNet-50
1.03 to 1.06, MobileNetV3 1.10 to 1.15, the default network 1.03, MobileNetV2 and EfficientNetB0 the
same within 3 %, NASNetMobile (many float Adds in its cells) 0.89 to 0.96.
``BuildSpec(properties={"SNIPPETS_MODE": "ENABLE"})`` enables them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from qat_lib.engines.backend import BuildRequest, BuiltEngine, EngineBackend
from qat_lib.engines.engine import Engine
from qat_lib.engines.environment import (
    CPU_DEVICE_KEYS,
    cpu_device,
    cpu_kind,
    cpu_refusal,
    is_limited,
)
from qat_lib.engines.loaded_tensors import check_tensors
from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.onnx_graph import GraphSummary, bounded
from qat_lib.engines.onnxruntime import reference_session
from qat_lib.engines.openvino_forms import SoundForm, make_sound, sound_form
from qat_lib.engines.openvino_layers import read_execution_graph
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
from qat_lib.graph.roles import onnx_operators
from qat_lib.options import Cpu
from qat_lib.support.mappings import map_values

logger = logging.getLogger(__name__)

# One request more than OpenVINO computes concurrently: it copies its input and output meanwhile.
_REQUESTS_AHEAD = 1
_INT8_PROPERTIES = {"SNIPPETS_MODE": "DISABLE"}
_LOOPS = onnx_operators("loop")
_FLOATS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}


class OpenVINOBackend(EngineBackend):
    """OpenVINO on this machine's CPU."""

    device_keys = CPU_DEVICE_KEYS
    rebuilds = True
    title = "OpenVINO"
    packages = "'qatline[engine]'"
    capabilities = frozenset({"cpu", "unsigned", "int4", "unsigned_graphs"})
    fallback = "onnxruntime"

    def version(self) -> str:
        """Return OpenVINO's full build version."""
        return str(_openvino().get_version())

    def device(self) -> Mapping[str, Any]:
        """Describe the CPU."""
        return cpu_device()

    def float_precisions(self) -> tuple[str, ...]:
        """Return fp32 and the other float precisions of this CPU."""
        return tuple(float_hints())

    def build(self, request: BuildRequest) -> BuiltEngine:
        """Compile the graph and export the compiled model."""
        core = _core()
        hints = float_hints()
        if request.spec.float_precision not in hints:
            raise ConfigError(
                f"This CPU computes in {', '.join(hints)}. Received: "
                f"float_precision={request.spec.float_precision}."
            )
        plain = _config(request.spec, hints[request.spec.float_precision])
        try:
            # The file may need changes; an unchanged file is read by path, with external weights.
            form = sound_form(request.onnx, cpu_kind(), request.spec.float_precision)
            model = core.read_model(form.data or str(request.onnx))
            make_sound(model)
            model.reshape(map_values(_partial_shape, request.spec.shapes))
            compiled, properties = _compile(core, model, request, plain)
            data = compiled.export_model().getvalue()
        except RuntimeError as error:
            raise EngineBuildError(
                f"OpenVINO {self.version()} can't compile {request.onnx}: {_reason(error)}. "
                f"{advise(request.onnx, request.graph, 'OpenVINO')}"
            ) from error
        # The imported model, not the compiled one: the description must match the served engine.
        running = core.import_model(data, "CPU", properties)
        layers, inspector = read_execution_graph(running, request.graph.nodes, timed=False)
        return BuiltEngine(
            data=data,
            device=self.device(),
            inputs=bounded(request.graph.inputs, request.spec),
            outputs=request.graph.outputs,
            layers=tuple(layers),
            inspector=inspector,
            properties=properties,
            warnings=_warnings(form, self.device()),
        )

    def refusal(self, manifest: EngineManifest) -> str | None:
        """Reject another OpenVINO build or architecture, and a CPU with missing instructions."""
        return cpu_refusal(self.title, self.version(), manifest)

    def open(
        self, data: bytes, manifest: EngineManifest, limits: RequestLimits | None = None
    ) -> Engine:
        """Import the compiled model."""
        return OpenVINOEngine(data, manifest, limits)


BACKEND = OpenVINOBackend


class OpenVINOEngine(Engine):
    """An imported OpenVINO model with its infer requests."""

    def __init__(self, data: bytes, manifest: EngineManifest, limits: RequestLimits | None) -> None:
        super().__init__(manifest)
        self._data = data
        compiled = _import(data, manifest, dict(manifest.properties))
        self._tensor = _openvino().Tensor
        inputs, self._names = names_of(manifest.inputs), names_of(manifest.outputs)
        check_tensors(
            manifest,
            _tensor_infos(compiled.inputs, {*inputs, *self._names}),
            _tensor_infos(compiled.outputs, {*inputs, *self._names}),
        )
        self._ports = list(map(compiled.input, inputs))
        self._compiled = compiled
        self.clients = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self._open_requests(compiled.create_infer_request, self.clients + _REQUESTS_AHEAD, limits)

    def _free(self, requests: list[Any]) -> None:
        requests.clear()
        self._compiled, self._ports = None, []

    def _run(self, request: Any, values: list[Array]) -> dict[str, Array]:
        try:
            for port, value in zip(self._ports, values, strict=True):
                # OpenVINO can't share read-only arrays, such as arrays mapped from a file.
                shared = value.flags.writeable
                request.set_tensor(port, self._tensor(value, shared_memory=shared))
            request.infer()
        except RuntimeError as error:
            raise EngineError(f"OpenVINO failed on the batch: {_reason(error)}.") from error
        answers = {}
        for index, name in enumerate(self._names):
            # A copy: the next run of the request overwrites its output tensors.
            answers[name] = request.get_output_tensor(index).data.copy()
        return answers

    def _layers(
        self,
        request: Any,  # noqa: ARG002  Engine's; the layers are those of every request
        timed: bool,
    ) -> list[EngineLayer]:
        compiled = self._compiled
        if timed:
            # A second import: PERF_COUNT can't be changed on a compiled model.
            compiled = _import(
                self._data, self.manifest, {**self.manifest.properties, "PERF_COUNT": True}
            )
        return read_execution_graph(compiled, self.manifest.nodes, timed=timed)[0]


def write_ir(onnx: Path, path: Path, cpu: Cpu) -> None:
    """Write an ONNX file as OpenVINO's IR, ``path`` with the suffix ``.xml`` and its ``.bin``.

    Args:
        onnx: the ONNX file.
        path: the new ``.xml`` file.
        cpu: kind of the CPUs that run it, see ``cpu_kind``.

    Raises:
        EngineBuildError: OpenVINO can't read the file.
        ExportError: the file is no ONNX file.
    """
    try:
        model = _core().read_model(sound_form(onnx, cpu).data or str(onnx))
        make_sound(model)
        for index, operation in enumerate(model.get_ordered_ops()):
            # Generated names count the operations of the process: files would differ.
            if operation.get_friendly_name() == operation.get_name():
                operation.set_friendly_name(f"{operation.get_type_name()}_{index}")
        _openvino().save_model(model, str(path), compress_to_fp16=False)
    except RuntimeError as error:
        raise EngineBuildError(f"OpenVINO can't read {onnx}: {_reason(error)}.") from error


def _openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise BackendUnavailableError(
            f"The openvino backend needs the openvino package ({error}). Install it with: pip "
            "install 'qatline[engine]'"
        ) from error
    return openvino


@functools.cache
def _core() -> Any:
    """Return the process-wide Core, which is never released.

    Releasing a Core unloads its CPU plugin and the plugin's signal stack of this thread
    (``sigaltstack``); the next Ctrl-C would then end the process with SIGSEGV.
    """
    return _openvino().Core()


def _tensor_infos(ports: Iterable[Any], known: Set[str]) -> list[TensorInfo]:
    """Return the inputs or outputs of the engine, each with its known name."""
    infos = []
    for port in ports:
        name = next(iter(known & port.get_names()), port.get_any_name())
        shape = tuple(
            None if size.is_dynamic else size.get_length() for size in port.get_partial_shape()
        )
        dtype = port.get_element_type().to_dtype().name
        infos.append(TensorInfo(name=name, shape=shape, dtype=dtype))
    return infos


def _import(data: bytes, manifest: EngineManifest, config: dict[str, Any]) -> Any:
    try:
        return _core().import_model(data, "CPU", config)
    except RuntimeError as error:
        raise EngineLoadError(
            f"OpenVINO {manifest.backend_version} refuses the engine file: {_reason(error)}. Build "
            "the engine again."
        ) from error


def float_hints() -> dict[str, str]:
    """Return OpenVINO's name of each float precision supported by this CPU.

    FP16 requires AVX512-FP16 or AMX-FP16, BF16 requires AVX512-BF16 or AMX-BF16.
    """
    if is_limited():  # OpenVINO still lists the capabilities of the unlimited CPU
        return {"fp32": _FLOATS["fp32"]}
    capabilities = _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return {name: hint for name, hint in _FLOATS.items() if name.upper() in capabilities}


def _config(spec: BuildSpec, float_hint: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": float_hint,
        "PERFORMANCE_HINT": spec.hint.upper(),
    }
    return config | ({"INFERENCE_NUM_THREADS": spec.threads} if spec.threads else {})


def _compile(
    core: Any, model: Any, request: BuildRequest, plain: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the compiled model and its compilation properties.

    The plugin does not list the properties for INT8 graphs as supported, and another version may
    reject them by name; the model is then compiled without them.
    """
    tuned = plain | (_INT8_PROPERTIES if request.graph.weights is not None else {})
    asked = dict(request.spec.properties)
    try:
        return core.compile_model(model, "CPU", tuned | asked), tuned | asked
    except RuntimeError as error:
        # Only properties added here are dropped, never those of the user.
        refused = [
            name
            for name in sorted(tuned.keys() - plain.keys() - asked.keys())
            if name in str(error)
        ]
        if not refused:
            raise
        logger.info("OpenVINO does not take %s: %s", ", ".join(refused), _reason(error))
        return core.compile_model(model, "CPU", plain | asked), plain | asked


def _warnings(form: SoundForm, device: Mapping[str, Any]) -> tuple[str, ...]:
    if not form.floats:
        return ()
    more = f" and {len(form.floats) - 1} more" if len(form.floats) > 1 else ""
    return (
        f"{device['name']} has neither VNNI nor AMX: the INT8 sums of {form.floats[0]}{more} can "
        "exceed 16 bits, so they run in float32. Quantize the model for this CPU (cpu='avx2', "
        "--cpu avx2 or engine.cpu=avx2) and export it again.",
    )


def _partial_shape(profile: Any) -> Any:
    openvino = _openvino()
    pairs = zip(profile.minimum, profile.maximum, strict=True)
    return openvino.PartialShape([openvino.Dimension(low, high) for low, high in pairs])


def _reason(error: RuntimeError) -> str:
    """Return the last line of OpenVINO's message, except source positions."""
    for line in reversed(str(error).splitlines()):
        if line.strip() and not line.strip().startswith("Exception from"):
            return line.strip().lstrip("- ").rstrip(".")
    return "no reason given"


def advise(onnx: Path, graph: GraphSummary, library: str) -> str:
    """Return a remedy for an ONNX file that ``library`` can't compile.

    The advice depends on whether ONNX Runtime accepts the file.

    Args:
        onnx: the ONNX file.
        graph: its summary.
        library: name of the library, for the text.
    """
    try:
        reference_session(onnx)
    except EngineBuildError as error:
        return f"{error} Verify the graph first (qatline verify)."
    except BackendUnavailableError:
        return "Verify the graph first (qatline verify)."
    right = f"The graph itself is right: ONNX Runtime takes it, and {library} does not."
    if any(operator in _LOOPS for _, operator in graph.order):
        return (
            f"{right} The graph steps through time in a Loop, which is how ConvLSTM and recurrent "
            "layers with cells of your own are exported. Build with backend='onnxruntime', or make "
            "the layers with unroll=True and export again."
        )
    quantized = ", or leave the layer out of quantization" if graph.weights is not None else ""
    return (
        f"{right} Build with backend='onnxruntime'{quantized}, or replace the layer that is named."
    )
