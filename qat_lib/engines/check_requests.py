"""Requests of an engine check: random ones, and real inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qat_lib.engines.engine import Engine
from qat_lib.engines.spec import ShapeProfile, parse_profile
from qat_lib.engines.values import Array
from qat_lib.errors import EngineError

Batch = Mapping[str, Array]


def random_batches(engine: Engine, requests: int, seed: int) -> list[Batch]:
    """Return random requests, from the smallest batch size to the largest."""
    batches: list[Batch] = []
    for index, size in enumerate(_sizes(engine, requests)):
        batches.append(engine.random_batch(size, seed=seed + index))
    return batches


def real_batches(engine: Engine, inputs: Array | Mapping[str, Array]) -> list[Batch]:
    """Return real inputs as requests, in the engine's layout.

    Args:
        engine: the engine.
        inputs: samples of its only input, or of each input by name.

    Raises:
        EngineError: inputs are missing or unknown, or their shape is wrong.
    """
    names = [info.name for info in engine.inputs]
    if not isinstance(inputs, Mapping):
        if len(names) != 1:
            raise EngineError(
                f"Expected arrays for the inputs {', '.join(names)}. Received one array: give a "
                "dict of arrays by input, or check the engine with random requests."
            )
        inputs = {names[0]: inputs}
    if set(inputs) != set(names):
        raise EngineError(
            f"Expected arrays for the inputs {', '.join(names)}. Received: {', '.join(inputs)}."
        )
    profiles = {name: parse_profile(engine.manifest.spec["shapes"][name]) for name in names}
    arrays = {name: _arranged(name, profiles[name], inputs[name]) for name in names}
    samples = {len(array) for array in arrays.values()}
    if len(samples) != 1:
        raise EngineError(f"Expected as many samples of each input. Received: {sorted(samples)}.")
    count = samples.pop()
    low = max(profile.minimum[0] for profile in profiles.values())
    high = min(profile.maximum[0] for profile in profiles.values())
    kinds = {info.name: info.dtype for info in engine.inputs}
    batches: list[Batch] = []
    for start in range(0, count, high):
        # Fill up the last batch with earlier samples.
        first = start if count - start >= low else count - low
        batches.append(
            {
                name: np.ascontiguousarray(array[first : first + high], kinds[name])
                for name, array in arrays.items()
            }
        )
    return batches


def _arranged(name: str, profile: ShapeProfile, inputs: Array) -> Array:
    """Return samples in the layout of an input."""
    values, low = np.asarray(inputs), profile.minimum[0]
    if not profile.contains((low, *values.shape[1:])) and values.ndim > 2:
        # Channels last to channels first.
        values = np.moveaxis(values, -1, 1)
    if not profile.contains((low, *values.shape[1:])) or len(values) < low:
        raise EngineError(
            f"Expected at least {low} inputs of shape {profile.optimum[1:]}, as {name} takes "
            f"them. Received {np.shape(inputs)}."
        )
    return values


def _sizes(engine: Engine, requests: int) -> list[int]:
    profile = parse_profile(engine.manifest.spec["shapes"][engine.inputs[0].name])
    low, high = profile.minimum[0], profile.maximum[0]
    return [low + (high - low) * i // max(requests - 1, 1) for i in range(requests)]
