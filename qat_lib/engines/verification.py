"""Compare a new engine with ONNX Runtime before renaming its file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.engines.agreement import ComparedAnswers
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

    The requests have the smallest, a middle and the largest shapes. A much larger batch repeats the
    samples of the smaller ones. They are normal random numbers, or numbers from 0 to 1 for a graph
    that has no answer to those, such as one with a logarithm.

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
    shapes = _shapes(engine)
    requests: list[Request] = []
    expected: list[Request] = []
    for index, wanted in enumerate(shapes):
        request, truth = _repeated(requests, expected, wanted) or _ask(
            reference, engine, wanted, seed + index
        )
        requests.append(request)
        expected.append(truth)
    _refuse_nan(expected)
    comparison = ComparedAnswers(
        manifest=engine.manifest,
        half=half,
        run=reference.run,
        moved=reference.moved,
        infer=engine.infer,
        requests=requests,
        answers=list(map(engine.infer, requests)),
        expected=expected,
    )
    if not comparison.outputs[comparison.worst].agrees:
        # In a graph whose samples influence each other, repeated ones get other answers.
        comparison = replace(comparison, expected=list(map(reference.run, requests)))
    compared, worst = comparison.outputs, comparison.worst
    if not compared[worst].agrees:
        raise EngineBuildError(_explain(engine, shapes, comparison))
    return {
        "reference": f"onnxruntime {reference.version}",
        "requests": list(map(_text, shapes)),
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


def _repeated(
    requests: Sequence[Request], expected: Sequence[Request], shapes: Mapping[str, Shape]
) -> tuple[Request, Request] | None:
    """Return a large request with the samples of earlier ones, and the reference's answers to them.

    The reference is slow for large batches. None where few samples would repeat, where their shapes
    differ, or where inputs and outputs do not have one row per sample.
    """
    if len(requests) < 2:
        return None
    counts = [
        _batch_size(array.shape for array in (*request.values(), *truth.values()))
        for request, truth in zip(requests, expected, strict=True)
    ]
    size = _batch_size(shapes.values())
    same = all(
        array.shape[1:] == tuple(shapes[name][1:])
        for request in requests
        for name, array in request.items()
    )
    if not (same and all(counts) and size >= 2 * sum(counts)):
        return None
    chosen = np.arange(size) % sum(counts)

    def repeat(parts: Sequence[Request]) -> Request:
        return {name: np.concatenate([part[name] for part in parts])[chosen] for name in parts[0]}

    return repeat(requests), repeat(expected)


def _batch_size(shapes: Iterable[Shape]) -> int:
    """Return the first dimension that all shapes have; 0 without one."""
    sizes = {shape[:1] for shape in shapes}
    return sizes.pop()[0] if len(sizes) == 1 and () not in sizes else 0


def _ask(
    reference: Reference, engine: Engine, shapes: Mapping[str, Shape], seed: int
) -> tuple[Request, Request]:
    """Return a random request and the reference's answer."""
    request, truth = _ask_normal(reference, engine, shapes, seed)
    if any(map(nan_samples, truth.values())):
        request = map_values(_between_0_and_1, request)
        truth = reference.run(request)
    return request, truth


def _between_0_and_1(values: Array) -> Array:
    if not np.issubdtype(values.dtype, np.floating):
        return values
    return (1 / (1 + np.exp(-values))).astype(values.dtype)


def _ask_normal(
    reference: Reference, engine: Engine, shapes: Mapping[str, Shape], seed: int
) -> tuple[Request, Request]:
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
                "65504), and export the corrected model. For a graph that takes no numbers from 0 to "
                "1 either, verify=False (--no-verify) builds without this comparison."
            )


def _explain(
    engine: Engine, shapes: Sequence[Mapping[str, Shape]], comparison: ComparedAnswers
) -> str:
    name = comparison.worst
    worst = comparison.outputs[name]
    by_shape = "; ".join(
        f"{_text(each)}: {differences([answer], [truth])[name]:.2g}"
        for each, answer, truth in zip(shapes, comparison.answers, comparison.expected, strict=True)
    )
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
