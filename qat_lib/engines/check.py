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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Literal

from qat_lib.engines.agreement import ComparedAnswers, LabelAgreement, OutputAgreement
from qat_lib.engines.backend import get_backend
from qat_lib.engines.check_requests import random_batches, real_batches
from qat_lib.engines.layer_check import (
    Progress,
    TensorDeparture,
    compare_layers,
    first_departing,
)
from qat_lib.engines.load import load_engine
from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.manifest_file import read_manifest
from qat_lib.engines.onnx_graph import read_summary
from qat_lib.engines.onnxruntime import Reference
from qat_lib.engines.values import Array, nan_samples
from qat_lib.errors import EngineError, QatlineError
from qat_lib.files.npy import load_npy, unpack_arrays
from qat_lib.support.digests import sha256_of_file

# Samples for the comparison of inner tensors; few, since every layer output is kept.
_PROBED = 8


@dataclass(frozen=True, kw_only=True)
class EngineCheck:
    """Result of a check.

    Args:
        passed: whether all answers are within the bound.
        message: one sentence for display.
        requests: number of requests, with batch sizes from the engine's smallest to its largest.
        largest_difference: largest difference from the reference over all outputs (see
            ``qat_lib.engines.agreement``).
        bound: largest accepted value of it.
        label_agreement: share of the real inputs with the same label; None without real inputs,
            and for outputs other than classes.
        load_seconds: duration of loading.
        memory_mib: memory growth of the process by loading the engine and answering the requests.
        samples: number of real inputs.
        first_layer: first layer outside of its bound, if layers were compared.
        layers: the compared inner tensors.
    """

    passed: bool
    message: str
    requests: int = 0
    largest_difference: float | None = None
    bound: float | None = None
    label_agreement: float | None = None
    load_seconds: float | None = None
    memory_mib: float | None = None
    samples: int = 0
    first_layer: str | None = None
    layers: tuple[TensorDeparture, ...] = ()


def check_engine(
    path: Path,
    onnx: Path,
    *,
    requests: int = 32,
    seed: int = 0,
    inputs: Array | Mapping[str, Array] | None = None,
    layers: Literal["never", "failed", "always"] = "never",
    on_progress: Progress | None = None,
) -> EngineCheck:
    """Load the engine at ``path`` and compare it with ONNX Runtime.

    The bound depends on the engine's precision (see ``qat_lib.engines.agreement``).

    Args:
        path: the engine file, with its manifest in the same folder.
        onnx: source of the engine, run by ONNX Runtime without optimizations.
        requests: number of random requests.
        seed: seed of the random requests.
        inputs: real inputs ``(samples, ...)``, or arrays by input for an engine with several, in
            its layout or, for images, channels last. They are judged separately from the random
            ones.
        layers: whether to also compare inner tensors, with another build of the graph: never
            (default); on failure, if the backend builds in seconds; or always.
        on_progress: called for these builds.
    """
    try:
        manifest = read_manifest(path)
        _check_source(path, manifest, onnx)
        get_backend(manifest.backend).version()  # the library's own memory is not the engine's
        before = _resident_mib()
        began = time.perf_counter()
        # A rebuilt engine would not be the checked file.
        engine = load_engine(path, rebuild=False)
        loaded = time.perf_counter() - began
        with engine:
            parts = [random_batches(engine, requests, seed)]
            if inputs is not None:
                parts.append(real_batches(engine, inputs))
            answers = [list(map(engine.infer, part)) for part in parts]
            memory = _resident_mib() - before
            _refuse_nan(path, answers)
            first = engine.outputs[0].name
            reference, half = Reference(onnx), read_summary(onnx).half
            comparisons = []
            for part, found in zip(parts, answers, strict=True):
                if part:
                    comparisons.append(
                        ComparedAnswers(
                            manifest=manifest,
                            half=half,
                            run=reference.run,
                            moved=reference.moved,
                            infer=engine.infer,
                            requests=part,
                            answers=found,
                            expected=list(map(reference.run, part)),
                        )
                    )
            worst = max(
                (each.outputs[each.worst] for each in comparisons), key=attrgetter("excess")
            )
            # Labels of random requests mean nothing.
            labels = None if inputs is None else comparisons[-1].labels(first)
        passed = worst.agrees and (labels is None or labels.agrees)
        departures: tuple[TensorDeparture, ...] = ()
        is_quick = get_backend(manifest.backend).rebuilds
        if layers == "always" or (layers == "failed" and not passed and is_quick):
            probed = parts[-1][: max(1, _PROBED // len(next(iter(parts[-1][0].values()))))]
            departures = compare_layers(manifest, onnx, probed, on_progress)
    except QatlineError as error:
        return EngineCheck(passed=False, message=str(error))
    samples = 0 if inputs is None else _samples(inputs)
    departing = first_departing(departures)
    return EngineCheck(
        passed=passed,
        message=_message(path, worst, labels, len(parts[0]), samples)
        + _layers_message(departures, passed),
        requests=sum(map(len, parts)),
        largest_difference=worst.difference,
        bound=worst.bound,
        label_agreement=None if labels is None else 1 - labels.other,
        load_seconds=loaded,
        memory_mib=memory,
        samples=samples,
        first_layer=None if departing is None else departing.layer,
        layers=departures,
    )


def _samples(inputs: Array | Mapping[str, Array]) -> int:
    return len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)


def _read_inputs(path: Path) -> Array | dict[str, Array]:
    """Return the array of a ``.npy`` file, or those of a ``.npz`` file by input."""
    return unpack_arrays(path) if path.suffix == ".npz" else load_npy(path)


def _check_source(path: Path, manifest: EngineManifest, onnx: Path) -> None:
    """Reject an ONNX file other than the source of the engine.

    Raises:
        EngineError: its digest differs from the one in the manifest.
    """
    built_from, given = manifest.source["sha256"], sha256_of_file(onnx)
    if built_from != given:
        raise EngineError(
            f"Expected the ONNX file that {path.name} was built from, with the SHA-256 "
            f"{built_from[:12]}…. Received {onnx} with {given[:12]}…. Give the file that the "
            f"manifest names ({manifest.source['path']}), or build the engine again."
        )


def _refuse_nan(path: Path, parts: Sequence[Sequence[Mapping[str, Array]]]) -> None:
    """Reject an engine with NaN in its answers, since NaN in the reference would agree with it.

    Raises:
        EngineError: an answer contains NaN.
    """
    for answers in parts:
        for name in answers[0] if answers else ():
            if found := sum(nan_samples(answer[name]) for answer in answers):
                raise EngineError(
                    f"Expected numbers from {path.name}. Received NaN in the output {name} for "
                    f"{found} samples. Check the weights of its ONNX file."
                )


def _message(
    path: Path,
    worst: OutputAgreement,
    labels: LabelAgreement | None,
    requests: int,
    samples: int,
) -> str:
    asked = [f"{requests} random requests"] if requests else []
    asked += [f"{samples} real inputs"] if samples else []
    relation = "within" if worst.agrees else "outside"
    mean = ", averaged over dithered inputs," if worst.averaged else ""
    text = (
        f"{path.name}, loaded in a fresh process, answered {' and '.join(asked)}; the "
        f"largest difference from the ONNX reference{mean} is {worst.difference:.2g} of the "
        f"outputs' spread, {relation} the bound of {worst.bound:.2g}."
    )
    if labels is not None and not labels.agrees:
        text += (
            f" {labels.other:.1%} of the real inputs get another label than from the reference; "
            f"rounding explains {labels.bound:.1%}."
        )
    return text


def _layers_message(departures: Sequence[TensorDeparture], passed: bool) -> str:
    departing = first_departing(departures)
    if departing is not None:
        return (
            f" The first layer that departs is {departing.layer}: its tensor {departing.tensor} "
            f"differs by {departing.difference:.2g}."
        )
    if passed or not departures:
        return ""
    return (
        " An engine built again from the ONNX file agrees: the engine file differs from "
        "the backend's result for that file. Build it again."
    )


def _resident_mib() -> float:
    """Return the resident memory of the process in MiB; 0 without ``/proc``."""
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
    parser.add_argument("--inputs", type=Path, help=".npy of real inputs, or .npz by input")
    parser.add_argument("--layers", choices=("never", "failed", "always"), default="never")
    options = parser.parse_args(arguments)
    result = check_engine(
        options.engine,
        options.onnx,
        requests=options.requests,
        seed=options.seed,
        inputs=None if options.inputs is None else _read_inputs(options.inputs),
        layers=options.layers,
    )
    sys.stdout.write(json.dumps(asdict(result)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_check(sys.argv[1:]))
