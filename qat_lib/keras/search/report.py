"""Result of a search: spec, accuracy, latency and verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qat_lib.core.plan import QuantizationPlan
from qat_lib.core.spec import QuantizationSpec
from qat_lib.files.whole_files import write_text
from qat_lib.keras.diagnosis.report import short_name

_WIDTH = 80


@dataclass(frozen=True, kw_only=True)
class FloatLayer:
    """One layer in float.

    Attributes:
        layer: name of the layer.
        drop_in_int8: drop of the metric with this layer in INT8 as well; None if not measured.
        splits: additions with a lost fusion into the kernel of this layer: each runs as a separate
            kernel.
    """

    layer: str
    drop_in_int8: float | None = None
    splits: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SpeedComparison:
    """Median latencies of built engines, measured in turns.

    Attributes:
        backend: backend of the engines.
        batch_size: number of samples per request.
        float_precision: precision of the fastest float engine: ``"fp32"``, ``"fp16"`` or ``"bf16"``.
        float_ms: median latency of the float engine in milliseconds.
        int8_ms: median latency of the chosen placement in milliseconds.
        all_int8_ms: median latency with every layer in INT8, in milliseconds.
        least: minimum speedup over the float engine to choose INT8.
    """

    backend: str
    batch_size: int
    float_precision: str
    float_ms: float
    int8_ms: float
    all_int8_ms: float
    least: float

    @property
    def ratio(self) -> float:
        """Speedup of the placement over the float engine."""
        return self.float_ms / self.int8_ms

    @property
    def passed(self) -> bool:
        """Whether the placement reaches the minimum speedup."""
        return self.ratio >= self.least


@dataclass(frozen=True, kw_only=True, repr=False)
class PlacementResult:
    """The placement chosen by a search, or the reason for keeping the float model.

    Attributes:
        model: name of the model.
        verdict: ``"int8"``; or ``"keep fp32"``, ``"keep fp16"`` or ``"keep bf16"`` if no placement
            is within the bound, or the best placement is not fast enough.
        spec: the placement, for ``quantize_model``, the command line and the pipeline; empty if
            every layer is quantized.
        plan: the plan of the placement.
        metric: name of the metric; greater is better.
        samples: number of samples of the metric.
        float_value: metric of the float model.
        all_int8_value: metric of the model with every layer in INT8.
        value: metric of the placement.
        max_drop: largest accepted drop.
        floats: layers in float.
        weighted_layers: number of quantizable layers with weights.
        evaluations: number of quantized and measured placements.
        proven: whether all placements with one float layer fewer were tried, and exceed the bound.
        speed: the latencies; None if no engine was built.
    """

    model: str
    verdict: str
    spec: QuantizationSpec
    plan: QuantizationPlan
    metric: str
    samples: int
    float_value: float
    all_int8_value: float
    value: float
    max_drop: float
    floats: tuple[FloatLayer, ...]
    weighted_layers: int
    evaluations: int
    proven: bool
    speed: SpeedComparison | None = None

    @property
    def drop(self) -> float:
        """Drop of the metric relative to the float model."""
        return self.float_value - self.value

    @property
    def found(self) -> bool:
        """Whether a placement was chosen."""
        return self.verdict == "int8"

    def save(self, path: str | Path) -> None:
        """Write the spec as YAML, with the result as comments."""
        head = "".join(f"# {line}\n" for line in str(self).splitlines())
        write_text(path, head + self.spec.to_yaml())

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {
            "model": self.model,
            "verdict": self.verdict,
            "spec": self.spec.to_list(),
            "metric": self.metric,
            "samples": self.samples,
            "float_value": self.float_value,
            "all_int8_value": self.all_int8_value,
            "value": self.value,
            "drop": self.drop,
            "max_drop": self.max_drop,
            "floats": [{**asdict(each), "splits": list(each.splits)} for each in self.floats],
            "weighted_layers": self.weighted_layers,
            "evaluations": self.evaluations,
            "proven": self.proven,
            "speed": None
            if self.speed is None
            else {**asdict(self.speed), "ratio": self.speed.ratio},
        }

    def __repr__(self) -> str:
        """Return the result in a line."""
        return (
            f"<PlacementResult of {self.model!r}: {self.verdict}, {len(self.floats)} of "
            f"{self.weighted_layers} layers in float>"
        )

    def __str__(self) -> str:
        """Return the result as text of 80 columns."""
        return "\n".join(_lines(self))


def _lines(result: PlacementResult) -> Iterator[str]:
    yield f"{result.model}: {result.metric} on {result.samples} samples"
    yield f"  FP32 {result.float_value:.2%}, every layer in INT8 {result.all_int8_value:.2%}"
    yield (
        f"  this placement {result.value:.2%}: drop {_points(result.drop)}, at most "
        f"{_points(result.max_drop)} accepted"
    )
    # A bound below one sample accepts no error at all, possibly by mistake.
    step = 1 / result.samples
    if result.metric != "fidelity" and result.max_drop < step:
        yield from _wrapped(
            f"One sample is {_points(step)}: give more samples for a bound of "
            f"{_points(result.max_drop)}."
        )
    yield from _floats(result)
    if result.speed is not None:
        yield from _wrapped(_speed(result.speed))
    yield f"Verdict: {_verdict(result)}"


def _floats(result: PlacementResult) -> Iterator[str]:
    proof = "no placement with one fewer" if result.proven else "none found with fewer"
    if not result.floats:
        yield f"All {result.weighted_layers} weighted layers in INT8."
        return
    yield (
        f"In float: {len(result.floats)} of {result.weighted_layers} weighted layers "
        f"({result.evaluations} placements tried;"
    )
    yield f"  {proof} is within the bound)"
    for each in result.floats:
        drop = "" if each.drop_in_int8 is None else f" drop in INT8: {_points(each.drop_in_int8)}"
        yield f"  {short_name(each.layer, 40):40}{drop}"
        for addition in each.splits:
            yield from _wrapped(
                f"splits the fused block of {addition}: the addition runs as a separate kernel, "
                "and a tensor is converted to INT8 for it.",
                "    ",
            )


def _speed(speed: SpeedComparison) -> str:
    return (
        f"{speed.backend}, batch {speed.batch_size}: this placement {speed.int8_ms:.3f} ms, every "
        f"layer in INT8 {speed.all_int8_ms:.3f} ms, {speed.float_precision.upper()} "
        f"{speed.float_ms:.3f} ms: {speed.ratio:.2f} times as fast as "
        f"{speed.float_precision.upper()} (at least {speed.least:.2f} asked for)."
    )


def _verdict(result: PlacementResult) -> str:
    if result.found:
        return "quantize with this spec"
    kept = result.verdict.removeprefix("keep ").upper()
    if result.drop > result.max_drop + 1e-9:
        return f"keep {kept}: no placement is within the bound"
    return f"keep {kept}: this placement is not faster"


def _points(share: float) -> str:
    return f"{share * 100:.2f} points"


def _wrapped(text: str, indent: str = "") -> list[str]:
    lines = textwrap.wrap(text, _WIDTH - 2 - len(indent), subsequent_indent="  ")
    return [f"{indent}{line}" for line in lines]
