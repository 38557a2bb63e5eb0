"""Compare a new engine with ONNX Runtime before renaming its file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.engines.agreement import ComparedAnswers, OutputAgreement
from qat_lib.engines.engine import Engine
from qat_lib.engines.onnxruntime import Reference
from qat_lib.engines.spec import Shape, ShapeProfile, parse_profile
from qat_lib.engines.values import Array, nan_samples
from qat_lib.errors import EngineBuildError
from qat_lib.support.answers import differences
from qat_lib.support.mappings import map_values

Request = dict[str, Array]

# Upper bounds of random integers; the second is for graphs with a lookup of fewer rows.
_LARGEST_INTEGERS = (127, 2)


def verify_answers(engine: Engine, onnx: Path, *, half: bool, seed: int = 0) -> dict[str, Any]:
    """Compare the answers to random requests with those of ONNX Runtime.

    The requests have the smallest, a middle and the largest shapes.

    Args:
        engine: the engine, loaded from its file.
        onnx: source of the engine.
        half: whether parts of the graph are in float16 or bfloat16.
        seed: seed of the random requests.

    Returns:
        ``requests`` (their shapes), ``differences`` by output, ``bound``, as in
        ``qat_lib.engines.agreement``.

    Raises:
        EngineBuildError: the difference of an output exceeds its bound, or ONNX Runtime can't run
            the graph.
    """
    reference = Reference(onnx)
    requests, answers, expected, found = [], [], [], []
    for index, shapes in enumerate(_shapes(engine)):
        request, truth = _ask(reference, engine, shapes, seed + index)
        requests.append(request)
        expected.append(truth)
        answers.append(engine.infer(request))
        found.append((shapes, differences(answers[-1:], expected[-1:])))
    _refuse_nan(expected)
    comparison = ComparedAnswers(
        manifest=engine.manifest,
        half=half,
        run=reference.run,
        moved=reference.moved,
        infer=engine.infer,
        requests=requests,
        answers=answers,
        expected=expected,
    )
    compared, worst = comparison.outputs, comparison.worst
    if not compared[worst].agrees:
        raise EngineBuildError(_explain(engine, worst, compared[worst], found))
    return {
        "reference": f"onnxruntime {reference.version}",
        "requests": [_text(shapes) for shapes, _ in found],
        "differences": map_values(attrgetter("difference"), compared),
        "bound": max(each.bound for each in compared.values()),
    }


def _shapes(engine: Engine) -> list[dict[str, Shape]]:
    """Return the shapes of three requests, all equal for an engine with fixed shapes."""
    profiles = map_values(parse_profile, engine.manifest.spec["shapes"])
    shapes = (attrgetter("minimum"), _middle, attrgetter("maximum"))
    return [map_values(shape, profiles) for shape in shapes]


def _middle(profile: ShapeProfile) -> Shape:
    """Return the geometric mean of the smallest and largest shapes (1 to 32: 6)."""
    return tuple(
        round(math.sqrt(low * high))
        for low, high in zip(profile.minimum, profile.maximum, strict=True)
    )


def _ask(
    reference: Reference, engine: Engine, shapes: Mapping[str, Shape], seed: int
) -> tuple[Request, Request]:
    """Return a random request and the reference's answer."""
    for most in _LARGEST_INTEGERS[:-1]:
        request = engine.random_request(shapes, seed=seed, integers_below=most)
        try:
            return request, reference.run(request)
        except EngineBuildError:
            # Only integers can be out of range of a lookup; otherwise another draw does not help.
            if all(np.issubdtype(value.dtype, np.floating) for value in request.values()):
                raise
    request = engine.random_request(shapes, seed=seed, integers_below=_LARGEST_INTEGERS[-1])
    return request, reference.run(request)


def _refuse_nan(expected: Sequence[Mapping[str, Array]]) -> None:
    """Reject a graph with NaN in its answers, since NaN of the engine would agree with it."""
    for name in expected[0]:
        found = sum(nan_samples(answer[name]) for answer in expected)
        if found:
            samples = sum(len(np.atleast_1d(answer[name])) for answer in expected)
            raise EngineBuildError(
                f"Expected numbers from the ONNX graph. ONNX Runtime gives NaN in the output {name} "
                f"for {found} of {samples} random samples, and nothing was written. Look for "
                "weights that are NaN, a division by zero or an overflow (in FP16, values beyond "
                "65504), and export the corrected model. For a graph that takes only other inputs, "
                "such as positive ones, verify=False (--no-verify) builds without this comparison."
            )


def _explain(
    engine: Engine,
    name: str,
    worst: OutputAgreement,
    found: list[tuple[dict[str, Shape], dict[str, float]]],
) -> str:
    by_shape = "; ".join(f"{_text(shapes)}: {one[name]:.2g}" for shapes, one in found)
    averaged = " after an average over dithered inputs" if worst.averaged else ""
    return (
        f"The engine does not answer as its ONNX graph does. Its output {name} differs from ONNX "
        f"Runtime's by {worst.difference:.2g} of the spread{averaged}; the "
        f"engine's precision explains {worst.bound:.2g} (by shape: {by_shape}). The fault is in "
        f"{engine.manifest.backend} {engine.manifest.backend_version} on "
        f"{engine.manifest.device['name']}, and nothing was written. Build for a largest batch "
        "that still agrees, or with another backend (backend='onnxruntime'); verify=False "
        "(--no-verify) builds without this comparison."
    )


def _text(shapes: Mapping[str, Shape]) -> str:
    texts = map_values(lambda shape: "x".join(map(str, shape)) or "scalar", shapes)
    if len(texts) == 1:
        return next(iter(texts.values()))
    return ", ".join(map(" ".join, texts.items()))
