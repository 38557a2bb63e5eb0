"""Engines of a model in float and INT8, timed in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

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
from qat_lib.engines.spec import Shape
from qat_lib.errors import EngineError
from qat_lib.onnx_view.shapes import declared_types, fixed_sizes, infer_graph
from qat_lib.options import Backend, BackendChoice
from qat_lib.ptq import front_end_of

LEAST_RATIO = 1.02
"""Minimum speedup of INT8 over the float engine to be chosen."""
_ROUNDS = 16
_BATCH = 32
LARGEST_TENSOR = 2**30
"""Largest number of bytes of one tensor in a batch of unstated size."""


@dataclass(frozen=True, kw_only=True)
class FastestEngine:
    """The fastest engine of a graph.

    Attributes:
        path: its file.
        precision: that of its float layers, ``"fp32"``, ``"fp16"`` or ``"bf16"``.
        warnings: precisions without an engine, each with the reason.
    """

    path: Path
    precision: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EngineTrial:
    """Builds engines of a model and compares their latency.

    Attributes:
        folder: folder for ONNX and engine files.
        backend: backend that builds and runs the engines.
        example: one batch, by input; only PyTorch modules need it.
        batches: returns the inputs batch by batch; only models whose inputs have open sizes need
            them, for the smallest and largest size of a sample.
        batch_size: number of samples per timed request.
        max_batch_size: largest batch of the engines. Default 1; None: 32, or fewer large samples.
        seconds: measuring time for each engine.
    """

    folder: Path
    backend: Backend
    example: Mapping[str, np.ndarray] = field(default_factory=dict)
    batches: Callable[[], Iterable[Sequence[np.ndarray]]] = tuple
    batch_size: int = 1
    max_batch_size: int | None = 1
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

    def build_float(self, model: Any, backend: BackendChoice | None = None) -> EngineArtifact:
        """Build the engine of a float model in FP32, or FP16 if the graph decides the precision.

        Args:
            model: the model.
            backend: as for ``build_int8``.
        """
        typed = get_backend(self.backend).supports("typed_graphs")
        onnx = self.folder / "float.onnx"
        options = {"target": self.backend, "float_precision": "fp16" if typed else "fp32"}
        front_end_of(model).export_like(model, onnx, self.example, **options)
        return build_engine(onnx, replace(self._spec(onnx), backend=backend or self.backend))

    def fastest(
        self, path: Path, accepts: Callable[[Path], bool] = lambda _: True
    ) -> FastestEngine:
        """Replace an engine by one with its float layers in FP16 or BF16 if that is faster.

        A supported precision may be slower than FP32, such as FP16 on many CPUs with AMX.

        Args:
            path: the engine.
            accepts: whether the quality of another engine suffices.
        """
        backend = get_backend(self.backend)
        if backend.supports("typed_graphs"):
            return FastestEngine(path=path, precision="fp16")
        onnx = path.with_suffix(".onnx")
        warnings: list[str] = []
        with TemporaryDirectory(dir=self.folder) as folder:

            def build(precision: str, *, verify: bool) -> Path | None:
                changed: Any = {"float_precision": precision}
                spec = replace(self._spec(onnx), **changed)
                output = Path(folder, f"{precision}.engine")
                try:
                    built = build_engine(onnx, spec, output=output, verify=verify).path
                    # OpenVINO 2026.4 compiles some convolutions in FP16 that it can't run.
                    with load_engine(built) as engine:
                        engine.infer(engine.random_batch(self.batch_size))
                    return built
                except EngineError as error:  # for example an overflow of FP16
                    warnings.append(f"No {precision.upper()} engine: {error}")
                    return None

            engines = {"fp32": path}
            for precision in backend.float_precisions():
                if precision != "fp32" and (other := build(precision, verify=False)):
                    engines[precision] = other
            # Briefly: a wrong choice needs two that are about equally fast.
            brief = replace(self, seconds=self.seconds / 4)
            times = brief.compare(engines) if len(engines) > 1 else {"fp32": 0.0}
            for precision in sorted(times, key=times.__getitem__):
                if precision == "fp32":
                    break
                other = build(precision, verify=True)  # slower than the measurement
                if other is not None and accepts(other):
                    # The engine with its manifest, layers and log.
                    for file in Path(folder).glob(f"{precision}.*"):
                        file.replace(
                            path.parent / f"{path.stem}{file.name.removeprefix(precision)}"
                        )
                    break
        return FastestEngine(path=path, precision=precision, warnings=tuple(warnings))

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
        model = read_model(onnx)
        inputs = summarize_graph(onnx, model).inputs
        has_open_sizes = any(None in info.shape[1:] for info in inputs)
        fixed = [(tuple(fixed_sizes(info.shape[1:])),) * 2 for info in inputs]
        sizes = self._sizes if has_open_sizes else fixed
        most = self.max_batch_size
        if most is None:
            batched = {
                info.name: largest
                for info, (_, largest) in zip(inputs, sizes, strict=True)
                if info.shape[:1] == (None,)
            }
            most = _largest_batch(model, batched)
        spec = BuildSpec(backend=self.backend, max_batch_size=most)
        if not has_open_sizes:
            return spec
        shapes = {}
        for info, (smallest, largest) in zip(inputs, sizes, strict=True):
            count = info.shape[0] or most
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


def _largest_batch(model: onnx.ModelProto, samples: Mapping[str, Shape]) -> int:
    """Return the largest batch, up to 32, with all tensors below 1 GiB in FP32; at least 1.

    Build, comparison and inference take several times as much.

    Args:
        model: the graph.
        samples: shape of a sample of each input with an open batch.
    """
    one, two = (_elements(model, samples, batch) for batch in (1, 2))
    # Weights, also those behind quantizers, do not grow with the batch.
    grown = max((count - one.get(name, count) for name, count in two.items()), default=0)
    return min(_BATCH, max(1, LARGEST_TENSOR // max(1, 4 * grown)))


def _elements(model: onnx.ModelProto, samples: Mapping[str, Shape], batch: int) -> dict[str, int]:
    """Return the number of elements of each tensor of known shape."""
    given = {name: (batch, *sample) for name, sample in samples.items()}
    return {
        name: math.prod(sizes)
        for name, found in declared_types(infer_graph(model, given))
        if len(sizes := fixed_sizes(found.shape)) == len(found.shape or ())
    }
