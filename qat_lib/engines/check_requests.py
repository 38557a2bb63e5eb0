"""Requests of an engine check: random ones, and real inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qat_lib.engines.engine import Engine
from qat_lib.engines.spec import parse_profile
from qat_lib.engines.values import Array
from qat_lib.errors import EngineError

Batch = Mapping[str, Array]


def random_batches(engine: Engine, requests: int, seed: int) -> list[Batch]:
    """Return random requests, from the smallest batch size to the largest."""
    batches: list[Batch] = []
    for index, size in enumerate(_sizes(engine, requests)):
        batches.append(engine.random_batch(size, seed=seed + index))
    return batches


def real_batches(engine: Engine, inputs: Array) -> list[Batch]:
    """Return real inputs as requests, in the engine's layout.

    Raises:
        EngineError: the engine has several inputs, or the shape of the inputs is wrong.
    """
    if len(engine.inputs) != 1:
        raise EngineError(
            f"Expected an engine with one input. It has {len(engine.inputs)}: check it with random "
            "requests."
        )
    (info,) = engine.inputs
    profile = parse_profile(engine.manifest.spec["shapes"][info.name])
    values = np.asarray(inputs)
    if not profile.contains((profile.minimum[0], *values.shape[1:])) and values.ndim > 2:
        # Channels last to channels first.
        values = np.moveaxis(values, -1, 1)
    low, high = profile.minimum[0], profile.maximum[0]
    if not profile.contains((low, *values.shape[1:])) or len(values) < low:
        raise EngineError(
            f"Expected at least {low} inputs of shape {profile.optimum[1:]}, as {info.name} takes "
            f"them. Received {np.shape(inputs)}."
        )
    batches: list[Batch] = []
    for start in range(0, len(values), high):
        part = values[start : start + high]
        if len(part) < low:  # fill up the last batch with earlier samples
            part = values[-low:]
        batches.append({info.name: np.ascontiguousarray(part, info.dtype)})
    return batches


def _sizes(engine: Engine, requests: int) -> list[int]:
    profile = parse_profile(engine.manifest.spec["shapes"][engine.inputs[0].name])
    low, high = profile.minimum[0], profile.maximum[0]
    return [low + (high - low) * i // max(requests - 1, 1) for i in range(requests)]
