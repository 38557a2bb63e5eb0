"""Base class of loaded engines, with checks of their inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from qat_lib.engines.layer_identity import identify_layers
from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.request_pool import RequestLimits, RequestPool
from qat_lib.engines.spec import parse_profile
from qat_lib.engines.timing import (
    LEAST_REQUESTS,
    Measured,
    check_arguments,
    summarize_times,
    time_requests,
    warm_up,
)
from qat_lib.engines.values import Array, EngineLayer, Latency, TensorInfo, names_of
from qat_lib.errors import EngineError

Batch = Array | Mapping[str, Array]


class Engine(ABC):
    """A loaded engine. Use it as a context manager, or call ``close``.

    ``infer`` is thread-safe: some requests run concurrently, the others wait in order of arrival
    (see ``RequestLimits``). The returned arrays belong to the caller.

    Subclasses must call ``_open_requests`` as soon as they can run a request.
    """

    clients = 1
    """Optimal number of concurrent callers; more than one for a CPU engine built for throughput."""

    _pool: RequestPool[Any]

    def __init__(self, manifest: EngineManifest) -> None:
        self.manifest = manifest
        self._inputs = [
            _InputCheck(info, manifest.spec["shapes"][info.name]) for info in manifest.inputs
        ]
        # Fast path for the common case of one input and a plain array.
        self._single = self._inputs[0] if len(self._inputs) == 1 else None

    def __repr__(self) -> str:
        """Return the engine's class, input names and output names."""
        names = [", ".join(info.name for info in part) for part in (self.inputs, self.outputs)]
        return f"<{type(self).__name__}: {names[0]} -> {names[1]}>"

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of each input; None is an open dimension of the profile."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of each output."""
        return self.manifest.outputs

    def infer(self, batch: Batch) -> dict[str, Array]:
        """Run one batch.

        Args:
            batch: the input array, or one array per input name; exact dtype, shape within the
                engine's profile, finite values.

        Returns:
            One new array per output name.

        Raises:
            EngineError: an input is missing, has the wrong dtype or shape, or contains non-finite
                values.
            EngineBusyError: too many callers are waiting, or no request became free in time.
            EngineLoadError: the engine is closed.
        """
        values = self._checked(batch)
        pool = self._pool
        request = pool.take()
        try:
            return self._run(request, values)
        finally:
            pool.give(request)

    def infer_many(self, batch: Batch) -> dict[str, Array]:
        """Run any number of samples, in parts within the engine's batch sizes.

        Fewer samples than the engine's smallest batch are padded with copies of the last one.

        Args:
            batch: as in ``infer``; the first dimension of each array is the batch.

        Returns:
            One array per output name, with as many samples as ``batch``.

        Raises:
            EngineError: there are no samples, or see ``infer``.
            EngineBusyError, EngineLoadError: see ``infer``.
        """
        arrays = batch if isinstance(batch, Mapping) else {self.inputs[0].name: batch}
        smallest, largest = self.batch_sizes
        samples = len(next(iter(arrays.values())))
        if not samples:
            raise EngineError("Expected at least one sample. Received none.")
        parts: list[dict[str, Array]] = []
        for start in range(0, samples, largest):
            part = {name: x[start : start + largest] for name, x in arrays.items()}
            size = min(largest, samples - start)
            if missing := max(0, smallest - size):
                part = {
                    name: np.concatenate([x, np.repeat(x[-1:], missing, axis=0)])
                    for name, x in part.items()
                }
            answers = self.infer(part)
            parts.append({name: values[:size] for name, values in answers.items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    @property
    def batch_sizes(self) -> tuple[int, int]:
        """The smallest and the largest batch that every input takes."""
        profiles = [check.profile for check in self._inputs if check.profile.optimum]
        smallest = max((profile.minimum[0] for profile in profiles), default=1)
        return smallest, min((profile.maximum[0] for profile in profiles), default=1)

    def layers(self, *, timed: bool = False) -> list[EngineLayer]:
        """Return the layers in execution order, as reported by the backend.

        Args:
            timed: whether to run the engine briefly with profiling, for the mean time of each
                layer.
        """
        with self._pool.lend() as request:
            layers = self._layers(request, timed)
        manifest = self.manifest
        return list(identify_layers(layers, manifest.identities, manifest.weighted_nodes))

    def benchmark(
        self,
        *,
        batch_size: int = 1,
        seconds: float = 2.0,
        warmup_seconds: float = 0.2,
        batch: Batch | None = None,
        seed: int = 0,
    ) -> Latency:
        """Measure latency and throughput with ``clients`` threads of sequential requests.

        Args:
            batch_size: samples in each request.
            seconds: duration of the measurement, with at least ten timed requests.
            warmup_seconds: duration of the warm-up.
            batch: the request; default: normal random numbers.
            seed: seed of the random numbers.
        """
        check_arguments(batch_size, seconds)
        request = self.random_batch(batch_size, seed=seed) if batch is None else batch
        return summarize_times(
            batch_size, [self.measure(request, seconds=seconds, warmup_seconds=warmup_seconds)]
        )

    def measure(
        self,
        batch: Batch,
        *,
        seconds: float,
        warmup_seconds: float = 0.0,
        least: int = LEAST_REQUESTS,
    ) -> Measured:
        """Time at least ``least`` requests of ``batch`` for ``seconds``, after a warm-up.

        ``benchmark`` summarizes the result.
        """

        def send() -> object:
            return self.infer(batch)

        warm_up(send, warmup_seconds, least)
        return time_requests(send, seconds, least=least, clients=self.clients)

    def random_batch(self, batch_size: int, *, seed: int = 0) -> dict[str, Array]:
        """Return normal random input of ``batch_size`` samples, by input name.

        Integers are 0 and 1: valid rows of every lookup table.
        """
        shapes = {check.info.name: check.shape(batch_size) for check in self._inputs}
        return self.random_request(shapes, seed=seed, integers_below=2)

    def random_request(
        self, shapes: Mapping[str, Sequence[int]], *, seed: int = 0, integers_below: int = 127
    ) -> dict[str, Array]:
        """Return random input by input name: normal numbers, or integers in [0, integers_below)."""
        generator = np.random.default_rng(seed)
        return {
            check.info.name: check.random(generator, tuple(shapes[check.info.name]), integers_below)
            for check in self._inputs
        }

    def close(self) -> None:
        """Reject new requests, finish running ones, and free the memory.

        Raises:
            EngineBusyError: requests still run after the timeout; no memory is freed.
        """
        self._free(self._pool.close())

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ for backends
    def _open_requests(
        self, make: Callable[[], Any], parallel: int, limits: RequestLimits | None
    ) -> None:
        """Create the first request, and allow up to ``parallel`` concurrent ones.

        Args:
            make: creates the resources of one thread for running batches. It must not refer to
                this engine, otherwise the cycle keeps the engine alive.
            parallel: default number of concurrent requests of the backend.
            limits: the user's limits; they override ``parallel``.
        """
        self._pool = RequestPool(make, parallel, limits or RequestLimits())

    @abstractmethod
    def _run(self, request: Any, values: list[Array]) -> dict[str, Array]:
        """Run checked, contiguous arrays, one per input in manifest order."""

    @abstractmethod
    def _layers(self, request: Any, timed: bool) -> list[EngineLayer]:
        """Return the layers, with times if ``timed``."""

    @abstractmethod
    def _free(self, requests: list[Any]) -> None:
        """Free the requests and the engine, with no request running; must be idempotent."""

    def _checked(self, batch: Batch) -> list[Array]:
        if self._single is not None and isinstance(batch, np.ndarray):
            return [self._single(batch)]
        return self._arranged(batch)

    def _arranged(self, batch: Any) -> list[Array]:
        if isinstance(batch, Mapping):
            names = names_of(self.inputs)
            if set(batch) != set(names):
                raise EngineError(
                    f"The engine's inputs are {sorted(names)}. Received: {sorted(map(str, batch))}."
                )
            return [check(batch[check.info.name]) for check in self._inputs]
        if self._single is None:
            raise EngineError(
                f"The engine has {len(self._inputs)} inputs: send a dict of arrays with the keys "
                f"{names_of(self.inputs)}. Received: {type(batch).__name__}."
            )
        return [self._single(batch)]


class _InputCheck:
    """Check of the arrays for one input."""

    def __init__(self, info: TensorInfo, profile: str) -> None:
        self.info = info
        self.profile = parse_profile(profile)
        self._dtype = np.dtype(info.dtype)
        self._floating = self._dtype.kind == "f"
        self._accepted: set[tuple[int, ...]] = set()

    def __call__(self, value: Array) -> Array:
        if not isinstance(value, np.ndarray) or value.dtype != self._dtype:
            received = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
            raise EngineError(
                f"Input {self.info.name} takes a NumPy array of {self._dtype}. Received: "
                f"{received}. Convert it with .astype(np.{self._dtype})."
            )
        # Cached: real traffic has few shapes, and the check takes longer than the lookup.
        if value.shape not in self._accepted:
            self._check_shape(value.shape)
        if self._floating and not np.isfinite(value).all():
            bad = np.argwhere(~np.isfinite(value))
            raise EngineError(
                f"Input {self.info.name} must be finite. Received: {len(bad)} values that are NaN "
                f"or infinite, the first at index {tuple(map(int, bad[0]))}. Check the "
                "preprocessing."
            )
        # Backends copy or share raw memory, which requires C order.
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)

    def shape(self, batch_size: int) -> tuple[int, ...]:
        """Return the shape of a batch, with the profile's optimum in the other dimensions."""
        return (batch_size, *self.profile.optimum[1:]) if self.profile.optimum else ()

    def random(
        self, generator: np.random.Generator, shape: tuple[int, ...], integers_below: int
    ) -> Array:
        """Return random values of ``shape``."""
        self._check_shape(shape)
        if self._floating:
            return generator.standard_normal(shape, dtype=np.float32).astype(
                self._dtype, copy=False
            )
        return generator.integers(0, integers_below, shape).astype(self._dtype)

    def _check_shape(self, shape: Sequence[int]) -> None:
        if not self.profile.contains(shape):
            low, high = self.profile.minimum, self.profile.maximum
            allowed = f"{low}" if self.profile.is_fixed else f"from {low} to {high}"
            raise EngineError(
                f"Input {self.info.name} takes shapes {allowed}. Received: {tuple(shape)}. "
                "Send another batch, or build the engine with shapes that include this one."
            )
        self._accepted.add(tuple(shape))
