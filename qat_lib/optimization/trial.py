"""Engines of a model in float and INT8, timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.engines import (
    BuildSpec,
    EngineArtifact,
    ShapeProfile,
    benchmark_together,
    build_engine,
    choose_backend,
    load_engine,
)
from qat_lib.engines.backend import get_backend
from qat_lib.engines.onnx_graph import read_model, summarize_graph
from qat_lib.options import Backend, BackendChoice
from qat_lib.ptq import front_end_of

LEAST_RATIO = 1.02
"""Minimum speedup of INT8 over the float engine to be chosen."""
_ROUNDS = 16


@dataclass(frozen=True, kw_only=True)
class EngineTrial:
    """Builds engines of a model and compares their latency.

    Attributes:
        folder: folder for ONNX and engine files.
        backend: backend that builds and runs the engines.
        example: the inputs of one batch; only PyTorch modules need them.
        batches: returns the inputs batch by batch; only models whose inputs have open sizes need
            them, for the smallest and largest size of a sample.
        batch_size: number of samples per timed request.
        max_batch_size: largest batch of the engines.
        seconds: measuring time for each engine.
    """

    folder: Path
    backend: Backend
    example: Sequence[np.ndarray] = ()
    batches: Callable[[], Iterable[Sequence[np.ndarray]]] = tuple
    batch_size: int = 1
    max_batch_size: int = 1
    seconds: float = 2.0

    @classmethod
    def on(cls, folder: Path, backend: str, batch_size: int, seconds: float) -> EngineTrial:
        """Return a trial with one batch size; the backend ``"auto"`` is the best available one.

        Raises:
            BackendUnavailableError: the backend is not available.
        """
        return cls(
            folder=folder,
            backend=choose_backend(backend),
            batch_size=batch_size,
            max_batch_size=batch_size,
            seconds=seconds,
        )

    @property
    def float_precision(self) -> str:
        """``"fp16"`` if the backend supports it, else ``"fp32"``."""
        backend = get_backend(self.backend)
        typed = backend.supports("typed_graphs")
        return "fp16" if typed or "fp16" in backend.float_precisions() else "fp32"

    def build_float(self, model: Any) -> Path:
        """Build the engine of a float model in the best float precision."""
        # Backends with typed graphs read FP16 from the ONNX file; others convert during the build.
        own_graph = get_backend(self.backend).supports("typed_graphs")
        precision: Any = "fp16" if own_graph else "fp32"
        onnx = self.folder / "float.onnx"
        options = {"target": self.backend, "float_precision": precision}
        front_end_of(model).export_like(model, onnx, self.example, **options)
        spec = self._spec(onnx)
        if self.float_precision == "fp16" and not own_graph:
            spec = replace(spec, float_precision="fp16")
        return build_engine(onnx, spec).path

    def build_int8(
        self, quantized: Any, name: str, *, backend: BackendChoice | None = None, **options: Any
    ) -> EngineArtifact:
        """Build the engine of a quantized model.

        Args:
            quantized: the model.
            name: name of the files, without suffix.
            backend: ``"auto"`` allows another backend where the first one computes the graph
                incorrectly. Default: the trial's.
            options: further options of ``export_onnx``.
        """
        onnx = self.folder / f"{name}.onnx"
        options["target"] = self.backend
        front_end_of(quantized).export_like(quantized, onnx, self.example, **options)
        return build_engine(onnx, replace(self._spec(onnx), backend=backend or self.backend))

    def _spec(self, onnx: Path) -> BuildSpec:
        """Return the build, with the sizes of the samples for inputs of open sizes."""
        spec = BuildSpec(backend=self.backend, max_batch_size=self.max_batch_size)
        inputs = summarize_graph(onnx, read_model(onnx)).inputs
        if all(None not in info.shape[1:] for info in inputs):
            return spec
        shapes = {}
        for info, (smallest, largest) in zip(inputs, self._sizes, strict=True):
            count = info.shape[0] or self.max_batch_size
            shapes[info.name] = ShapeProfile(
                minimum=(info.shape[0] or 1, *smallest),
                optimum=(count, *largest),
                maximum=(count, *largest),
            )
        return replace(spec, shapes=shapes)

    @cached_property
    def _sizes(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Smallest and largest shape of a sample of each input."""
        shapes = [[array.shape[1:] for array in batch] for batch in self.batches()]
        return [
            (tuple(map(min, *each, each[0])), tuple(map(max, *each, each[0])))
            for each in zip(*shapes, strict=True)
        ]

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
