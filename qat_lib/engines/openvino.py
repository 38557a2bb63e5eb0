"""INT8 engines on a CPU: compiled OpenVINO models.

What each layer runs in is read from the execution graph of the imported model, the one that answers
requests. The float precision is always set: left alone, OpenVINO computes in bfloat16 wherever the
CPU can, which is neither the FP32 that the model was trained in nor what the residual Adds of an
INT8 graph fuse with.

INT8 graphs are compiled without OpenVINO's "snippets", which take chains of element-wise layers for
themselves and with them residual Adds and activations that would else run inside the INT8
convolution in front of them. Measured with OpenVINO 2026.4, medians at batch 1, in turns: ResNet-50
1.03 to 1.06 times as fast, MobileNetV3 1.10 to 1.15, the default network 1.03, MobileNetV2 and
EfficientNetB0 the same within 3 %, NASNetMobile, whose cells add many float tensors, 0.89 to 0.96.
``BuildSpec(properties={"SNIPPETS_MODE": "ENABLE"})`` switches them on again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Set
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
from qat_lib.engines.import_advice import advise
from qat_lib.engines.loaded_tensors import check_tensors
from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.onnx_graph import bounded
from qat_lib.engines.openvino_forms import SoundForm, keep_time_axes, sound_form
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
from qat_lib.support.mappings import map_values

logger = logging.getLogger(__name__)

# One request more than OpenVINO computes at once: its input and output are copied while another one
# computes.
_REQUESTS_AHEAD = 1
_INT8_PROPERTIES = {"SNIPPETS_MODE": "DISABLE"}
_FLOATS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}


class OpenVINOBackend(EngineBackend):
    """OpenVINO on this machine's CPU."""

    device_keys = CPU_DEVICE_KEYS
    rebuilds = True
    title = "OpenVINO"
    capabilities = frozenset({"cpu", "unsigned", "int4", "unsigned_graphs"})
    fallback = "onnxruntime"

    def version(self) -> str:
        """Return OpenVINO's full build version."""
        return str(_openvino().get_version())

    def device(self) -> Mapping[str, Any]:
        """Describe the CPU."""
        return cpu_device()

    def float_precisions(self) -> tuple[str, ...]:
        """Return fp32 and what else this CPU computes in."""
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
            form = sound_form(request.onnx, cpu_kind())
            model = core.read_model(form.data or str(request.onnx))
            keep_time_axes(model)
            model.reshape(map_values(_partial_shape, request.spec.shapes))
            compiled, properties = _compile(core, model, request, plain)
            data = compiled.export_model().getvalue()
        except RuntimeError as error:
            raise EngineBuildError(
                f"OpenVINO {self.version()} can't compile {request.onnx}: {_reason(error)}. "
                f"{advise(request.onnx, request.graph, 'OpenVINO')}"
            ) from error
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
        """Refuse another OpenVINO build or architecture, and a CPU that lacks instructions."""
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
                # OpenVINO shares no array that is read-only, such as one mapped from a file.
                shared = value.flags.writeable
                request.set_tensor(port, self._tensor(value, shared_memory=shared))
            request.infer()
        except RuntimeError as error:
            raise EngineError(f"OpenVINO failed on the batch: {_reason(error)}.") from error
        answers = {}
        for index, name in enumerate(self._names):
            answers[name] = request.get_output_tensor(index).data.copy()
        return answers

    def _layers(
        self,
        request: Any,  # noqa: ARG002  Engine's; the layers are those of every request
        timed: bool,
    ) -> list[EngineLayer]:
        compiled = self._compiled
        if timed:
            compiled = _import(
                self._data, self.manifest, {**self.manifest.properties, "PERF_COUNT": True}
            )
        return read_execution_graph(compiled, self.manifest.nodes, timed=timed)[0]


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
    """Return the one Core of this process.

    A Core that goes takes its CPU plugin along, and with it the memory that the plugin gave this
    thread for signal handlers (``sigaltstack``): the next Ctrl-C would end the process with
    SIGSEGV.
    """
    return _openvino().Core()


def _tensor_infos(ports: Iterable[Any], known: Set[str]) -> list[TensorInfo]:
    """Return the engine's inputs or outputs, each by its known name."""
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
    """Return OpenVINO's name of each float precision that this CPU computes in.

    FP16 needs AVX512-FP16 or AMX-FP16, BF16 needs AVX512-BF16 or AMX-BF16.
    """
    if is_limited():  # OpenVINO still lists what the CPU could do
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
    """Return the compiled model and the properties it was compiled with.

    The plugin does not list the properties for INT8 graphs among those that it supports, and
    another version of it may not know them: then it refuses them by name, and the model is compiled
    without.
    """
    tuned = plain | (_INT8_PROPERTIES if request.graph.weights is not None else {})
    asked = dict(request.spec.properties)
    try:
        return core.compile_model(model, "CPU", tuned | asked), tuned | asked
    except RuntimeError as error:
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
    """Return the last line of OpenVINO's message that is no source position."""
    for line in reversed(str(error).splitlines()):
        if line.strip() and not line.strip().startswith("Exception from"):
            return line.strip().lstrip("- ").rstrip(".")
    return "no reason given"
