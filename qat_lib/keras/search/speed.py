"""Latency of placements, from engines timed in turns."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qat_lib.engines import BuildSpec, benchmark_together, build_engine, choose_backend, load_engine
from qat_lib.engines.backend import get_backend
from qat_lib.keras.export import export_onnx
from qat_lib.options import Backend

LEAST_RATIO = 1.02
"""Minimum speedup of INT8 over the float engine to be chosen."""
_ROUNDS = 16


@dataclass(frozen=True, kw_only=True)
class SpeedTrial:
    """Builds engines and compares their latency.

    Attributes:
        folder: folder for ONNX and engine files.
        backend: backend that builds and runs the engines.
        batch_size: number of samples per request.
        seconds: measuring time for each engine.
    """

    folder: Path
    backend: Backend
    batch_size: int = 1
    seconds: float = 2.0

    @classmethod
    def on(cls, folder: Path, backend: str, batch_size: int, seconds: float) -> SpeedTrial:
        """Return a trial on a backend; ``"auto"`` selects the best available one.

        Raises:
            BackendUnavailableError: the backend is not available.
        """
        chosen = choose_backend(backend)
        return cls(folder=folder, backend=chosen, batch_size=batch_size, seconds=seconds)

    @property
    def float_precision(self) -> str:
        """``"fp16"`` if the backend supports it, else ``"fp32"``."""
        backend = get_backend(self.backend)
        typed = backend.supports("typed_graphs")
        return "fp16" if typed or "fp16" in backend.float_precisions() else "fp32"

    def build_float(self, model: Any) -> Path:
        """Build the engine of a float model in the best float precision."""
        spec = self._spec()
        # Backends with typed graphs read FP16 from the ONNX file; others convert during the build.
        own_graph = get_backend(self.backend).supports("typed_graphs")
        if self.float_precision == "fp16" and not own_graph:
            spec = replace(spec, float_precision="fp16")
        precision: Any = "fp16" if own_graph else "fp32"
        onnx = self.folder / "float.onnx"
        export_onnx(model, onnx, target=self.backend, float_precision=precision)
        return build_engine(onnx, spec).path

    def build_int8(self, quantized: Any, name: str) -> Path:
        """Build the engine of a quantized model."""
        onnx = self.folder / f"{name}.onnx"
        export_onnx(quantized, onnx, target=self.backend)
        return build_engine(onnx, self._spec()).path

    def _spec(self) -> BuildSpec:
        return BuildSpec(backend=self.backend, max_batch_size=self.batch_size)

    def compare(self, engines: Mapping[str, Path]) -> dict[str, float]:
        """Return the median latency of each engine in ms, measured in turns."""
        with ExitStack() as stack:
            # In turns, so that changes of clock rate and load affect all engines alike.
            loaded = {}
            for name, path in engines.items():
                loaded[name] = stack.enter_context(load_engine(path))
            found = benchmark_together(
                loaded, batch_size=self.batch_size, seconds=self.seconds, rounds=_ROUNDS
            )
        return {name: latency.p50_ms for name, latency in found.items()}
