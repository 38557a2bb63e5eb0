"""The TensorRT backend: availability, build, refusal and loading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from qat_lib.engines.backend import BuildRequest, BuiltEngine, EngineBackend
from qat_lib.engines.engine import Engine
from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.onnx_graph import bounded
from qat_lib.engines.request_pool import RequestLimits
from qat_lib.engines.tensorrt.builder import build_plan
from qat_lib.engines.tensorrt.callbacks import BuildLog
from qat_lib.engines.tensorrt.capabilities import Capabilities, capabilities_of
from qat_lib.engines.tensorrt.cuda import CudaDevice, Device
from qat_lib.engines.tensorrt.inspector import is_detailed, read_inspector
from qat_lib.engines.tensorrt.library import import_tensorrt
from qat_lib.engines.tensorrt.loaded_plan import LoadedPlan
from qat_lib.engines.tensorrt.runtime import TensorRTEngine

DEVICE_KEYS: Mapping[str, type] = {"name": str, "compute_capability": str}


class TensorRTBackend(EngineBackend):
    """TensorRT on the first visible GPU.

    Args:
        trt: the ``tensorrt`` module; None imports it on first use.
        device: the GPU; None = the first visible one.
    """

    device_keys = DEVICE_KEYS
    rebuilds = False  # a build takes minutes
    title = "TensorRT"
    # NVIDIA's wheel is in no extra: its name depends on the CUDA version.
    packages = "tensorrt-cu12 'qatline[engine,tensorrt]'"
    capabilities = frozenset({"typed_graphs", "tf32"})

    def __init__(self, trt: Any = None, device: Device | None = None) -> None:
        self._trt = trt
        self._device = device or CudaDevice()

    def version(self) -> str:
        """Return TensorRT's version after a check that it is supported and a GPU exists.

        The GPU is checked through CUDA, because TensorRT 8.6 crashes in ``Runtime()`` without one.
        """
        trt = self._module()
        self._device.info()
        return str(trt.__version__)

    def device(self) -> Mapping[str, Any]:
        """Describe the GPU."""
        return {"kind": "gpu", **asdict(self._device.info())}

    def float_precisions(self) -> tuple[str, ...]:
        """Return fp32, and fp16 if it is a builder flag.

        Strongly typed versions read FP16 from the graph.
        """
        self._module()
        return ("fp32", "fp16") if self._capabilities().fp16_flags else ("fp32",)

    def build(self, request: BuildRequest) -> BuiltEngine:
        """Build the engine, load it, and read the precision of its layers."""
        trt = self._module()
        device = self.device()
        log = BuildLog()
        data = build_plan(trt, self._capabilities(), request, log)
        plan = LoadedPlan(trt, data, log, version_compatible=request.spec.version_compatible)
        description = plan.describe(plan.create_context(), request.spec.shapes)
        inputs, outputs = plan.tensors()
        memory = int(getattr(plan.engine, self._capabilities().memory_property))
        plan.close()
        layers = read_inspector(
            description, nodes=request.graph.nodes, weighted=request.graph.weighted
        )
        warnings = log.warnings()
        if not is_detailed(description):
            warnings += ("The inspector gives layer names only, so their precision is not known.",)
        return BuiltEngine(
            data=data,
            device=device,
            inputs=bounded(inputs, request.spec),
            outputs=outputs,
            layers=tuple(layers),
            inspector=description,
            log=log.text(),
            warnings=warnings,
            device_memory_bytes=memory,
        )

    def refusal(self, manifest: EngineManifest) -> str | None:
        """Reject another version or GPU, unless the engine was built for compatibility."""
        here, built = self.version(), manifest.backend_version
        if not _version_fits(built, here, bool(manifest.spec.get("version_compatible"))):
            return f"it was built by TensorRT {built}, here is {here}."
        device = self.device()
        name, capability = manifest.device["name"], manifest.device["compute_capability"]
        if manifest.spec.get("hardware_compatible"):
            if float(device["compute_capability"]) < 8.0:
                return f"it needs an Ampere or newer GPU, here is {device['name']}."
        elif (device["name"], device["compute_capability"]) != (name, capability):
            return (
                f"it was built for {name} (compute capability {capability}), here is "
                f"{device['name']} ({device['compute_capability']})."
            )
        return None

    def open(
        self, data: bytes, manifest: EngineManifest, limits: RequestLimits | None = None
    ) -> Engine:
        """Load the engine onto the GPU."""
        return TensorRTEngine(self._module(), self._device, data, manifest, limits)

    def _module(self) -> Any:
        if self._trt is None:
            self._trt = import_tensorrt()
        self._capabilities()
        return self._trt

    def _capabilities(self) -> Capabilities:
        return capabilities_of(str(self._trt.__version__))


def _version_fits(built: str, here: str, compatible: bool) -> bool:
    if not compatible:
        return built == here
    one, other = (
        [int(part) for part in version.split(".") if part.isdigit()] for version in (built, here)
    )
    # Same major version, and built by this or an earlier version.
    return one[0] == other[0] and one <= other
