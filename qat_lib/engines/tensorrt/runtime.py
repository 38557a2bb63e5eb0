"""Run a TensorRT engine with one execution context for each concurrent request."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from qat_lib.engines.engine import Batch, Engine
from qat_lib.engines.loaded_tensors import check_tensors
from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.request_pool import RequestLimits
from qat_lib.engines.spec import parse_profile
from qat_lib.engines.tensorrt.callbacks import BuildLog
from qat_lib.engines.tensorrt.cuda import Device
from qat_lib.engines.tensorrt.execution import Execution
from qat_lib.engines.tensorrt.inspector import read_inspector
from qat_lib.engines.tensorrt.loaded_plan import LoadedPlan
from qat_lib.engines.timing import LEAST_REQUESTS, Measured, time_requests, warm_up
from qat_lib.engines.values import Array, EngineLayer
from qat_lib.support.mappings import map_values

# The second context copies while the first one computes. It needs the device memory of one more
# context, and is created only for concurrent threads.
_PARALLEL = 2


class TensorRTEngine(Engine):
    """A TensorRT engine on the first visible GPU."""

    def __init__(
        self,
        trt: Any,
        device: Device,
        data: bytes,
        manifest: EngineManifest,
        limits: RequestLimits | None,
    ) -> None:
        super().__init__(manifest)
        log = BuildLog()
        version_compatible = bool(manifest.spec.get("version_compatible"))
        self._plan = LoadedPlan(trt, data, log, version_compatible=version_compatible)
        check_tensors(manifest, *self._plan.tensors())
        profiles = map_values(parse_profile, manifest.spec["shapes"])
        make = partial(Execution, self._plan, device, manifest, profiles, log)
        self._open_requests(make, _PARALLEL, limits)

    def measure(
        self,
        batch: Batch,
        *,
        seconds: float,
        warmup_seconds: float = 0.0,
        least: int = LEAST_REQUESTS,
    ) -> Measured:
        """Measure like ``trtexec``.

        After a warm-up, events measure the compute time, with a CUDA graph if possible.
        """
        values = self._checked(batch)
        compute: list[float] = []
        with self._pool.lend() as execution, ExitStack() as stack:
            run, captured = execution.timed(values, stack)

            def send() -> None:
                compute.append(run())

            warm_up(send, warmup_seconds, least)
            compute.clear()
            whole = time_requests(send, seconds, least=least)
        return replace(whole, compute=compute, cuda_graph=captured)

    def _run(self, request: Execution, values: list[Array]) -> dict[str, Array]:
        return request.run(values)

    def _layers(self, request: Execution, timed: bool) -> list[EngineLayer]:
        description = request.describe()
        times = request.layer_times() if timed else {}
        nodes = self.manifest.nodes
        return read_inspector(
            description, nodes=nodes, weighted=self.manifest.weighted_nodes, times=times
        )

    def _free(self, requests: list[Execution]) -> None:
        for execution in requests:
            execution.close()
        self._plan.close()
