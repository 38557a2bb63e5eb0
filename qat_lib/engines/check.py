"""Check an engine file as served, against the ONNX reference.

``python -m qat_lib.engines.check model.engine --onnx model.onnx`` does that in a fresh process and
prints one JSON object; the exit code is 0 whether or not the engine passed, and not 0 only if the
check itself broke.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np

from qat_lib.engines.agreement import (
    bound_of,
    differences,
    have_equal_shapes,
    widened_bounds,
)
from qat_lib.engines.backend import get_backend
from qat_lib.engines.engine import Engine
from qat_lib.engines.load import load_engine
from qat_lib.engines.manifest_file import read_manifest
from qat_lib.engines.onnx_graph import read_summary
from qat_lib.engines.onnxruntime import Reference
from qat_lib.engines.spec import parse_profile
from qat_lib.engines.values import Array
from qat_lib.errors import QatlineError


# Largest accepted difference, as a share of the reference's spread (largest minus smallest output
# value). In INT8 a sum that falls on a rounding boundary may go to the neighbouring level, and
# later layers carry that on.
@dataclass(frozen=True, kw_only=True)
class EngineCheck:
    """Result of a check.

    Args:
        passed: whether every request was answered within the bound.
        message: one sentence for people.
        requests: requests sent, of batch sizes from the smallest to the largest that the engine
            takes.
        largest_difference: largest difference from the reference over all outputs (see
            ``qat_lib.engines.agreement``).
        bound: largest accepted value of it.
        label_agreement: share of samples whose largest output is the same.
        load_seconds: how long loading took.
        memory_mib: growth of the process by loading the engine and answering the requests.
    """

    passed: bool
    message: str
    requests: int = 0
    largest_difference: float | None = None
    bound: float | None = None
    label_agreement: float | None = None
    load_seconds: float | None = None
    memory_mib: float | None = None


def check_engine(path: Path, onnx: Path, *, requests: int = 32, seed: int = 0) -> EngineCheck:
    """Load the engine at ``path`` and compare it with ONNX Runtime.

    The reference runs ``onnx``. The requests are random.

    The bound is what the engine's precision explains on this machine (see
    ``qat_lib.engines.agreement``).
    """
    try:
        manifest = read_manifest(path)
        get_backend(manifest.backend).version()  # the library's own memory is not the engine's
        before = _resident_mib()
        began = time.perf_counter()
        engine = load_engine(path, rebuild=False)
        loaded = time.perf_counter() - began
        with engine:
            batches = []
            for index, size in enumerate(_sizes(engine, requests)):
                batches.append(engine.random_batch(size, seed=seed + index))
            answers = list(map(engine.infer, batches))
            memory = _resident_mib() - before
            bound = bound_of(manifest, half=read_summary(onnx).half)
            pick = itemgetter(engine.outputs[0].name)
        reference = Reference(onnx)
        expected = list(map(reference.run, batches))
        whole = differences(answers, expected)
        bounds = dict.fromkeys(whole, bound)
        if manifest.quantized and not max(whole.values()) <= bound:
            bounds = widened_bounds(bound, reference.run, batches, expected)
        # The output that is nearest to its bound, or furthest past it, decides.
        worst = max(whole, key=lambda name: whole[name] / bounds[name])
        largest, bound = whole[worst], bounds[worst]
        agreement = _equal_labels([*map(pick, answers)], [*map(pick, expected)])
    except QatlineError as error:
        return EngineCheck(passed=False, message=str(error))
    passed = bool(largest <= bound)
    relation = "within" if passed else "outside"
    return EngineCheck(
        passed=passed,
        message=(
            f"{path.name}, loaded in a fresh process, answered {len(batches)} random requests; the "
            f"largest difference from the ONNX reference is {largest:.2g} of the outputs' spread, "
            f"{relation} the bound of {bound:g}."
        ),
        requests=len(batches),
        largest_difference=largest,
        bound=bound,
        label_agreement=agreement,
        load_seconds=loaded,
        memory_mib=memory,
    )


def _sizes(engine: Engine, requests: int) -> list[int]:
    profile = parse_profile(engine.manifest.spec["shapes"][engine.inputs[0].name])
    low, high = profile.minimum[0], profile.maximum[0]
    return [low + (high - low) * i // max(requests - 1, 1) for i in range(requests)]


def _equal_labels(answers: list[Array], expected: list[Array]) -> float:
    """Return the share of samples with equal argmax."""
    if not have_equal_shapes(answers, expected):
        return 0.0
    equal = []
    for one, other in zip(answers, expected, strict=True):
        equal.append(_labels(one) == _labels(other))
    return float(np.concatenate(equal).mean())


def _labels(answer: Array) -> Array:
    labels: Array = answer.reshape(len(answer), -1).argmax(1)
    return labels


def _resident_mib() -> float:
    """Return the process's resident memory; 0 where ``/proc`` is missing."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    import resource

    return pages * resource.getpagesize() / 2**20


def run_check(arguments: list[str]) -> int:
    """Run the check of the command line and write JSON to stdout."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", type=Path)
    parser.add_argument("--onnx", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    result = check_engine(
        options.engine, options.onnx, requests=options.requests, seed=options.seed
    )
    sys.stdout.write(json.dumps(asdict(result)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_check(sys.argv[1:]))
