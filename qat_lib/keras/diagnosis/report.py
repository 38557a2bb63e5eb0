"""Result of a diagnosis: tensor errors, layer effects, causes and fixes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, cast

from qat_lib.core.plan_entries import SkippedLayer, skipped_to_dict
from qat_lib.core.spec import LayerConfig, QuantizationSpec
from qat_lib.errors import SpecError
from qat_lib.pages.numbers import significant

Cause: TypeAlias = Literal[
    "outlier channel",
    "clipped range",
    "dead channel",
    "depthwise weight spread",
    "unquantizable pattern",
]
"""Cause of a quantization error."""


_WIDTH = 80
_NAME = 26
_ROWS = 12
# Effect below which quantization has no measurable cost.
_NOTHING = 1e-5
MEASURES = {
    "kl": "KL divergence of the class probabilities from FP32's, in nats",
    "error": "RMS error of the outputs, as a share of their standard deviation",
}
"""Description of each effect measure."""


@dataclass(frozen=True, kw_only=True)
class TensorError:
    """The quantization error of one tensor or weight.

    The values are measured in the fully quantized model.

    Attributes:
        quantizer: name of its quantizer.
        kind: ``"activation"``, ``"weight"`` or ``"internal"``.
        tensor: ``"<layer>:<output>"``, or ``"<layer>/<weight>"``.
        layer: the layer that computes the tensor or owns the weight.
        readers: layers that read it.
        sqnr_db: signal to quantization noise ratio in dB; infinite without noise.
        channel_sqnr_db: SQNR of the median channel; lower than ``sqnr_db`` if few channels contain
            most of the signal.
        cosine: cosine similarity of the values and the quantized values, in [-1, 1].
        clipped: share of the values beyond the range, in [0, 1].
        channel_spread: largest magnitude of a channel over the median channel's.
    """

    quantizer: str
    kind: str
    tensor: str
    layer: str
    readers: tuple[str, ...]
    sqnr_db: float
    channel_sqnr_db: float
    cosine: float
    clipped: float
    channel_spread: float


@dataclass(frozen=True, kw_only=True)
class PartEffect:
    """The effect of a layer's weights or inputs on the model's outputs.

    Attributes:
        quantizers: names of their quantizers.
        only: effect of quantizing only them, with everything else in float.
        without: remaining effect with only them in float.
        sqnr_db: worst SQNR of their quantizers, in dB.
    """

    quantizers: tuple[str, ...]
    only: float
    without: float
    sqnr_db: float


@dataclass(frozen=True, kw_only=True)
class LayerEffect:
    """The effects of one layer, separately for weights and inputs; None if not quantized."""

    layer: str
    weights: PartEffect | None = None
    inputs: PartEffect | None = None

    @property
    def largest(self) -> float:
        """The larger effect of its two parts, each quantized alone."""
        return max(part.only for part in (self.weights, self.inputs) if part is not None)


@dataclass(frozen=True, kw_only=True)
class LayerFinding:
    """One cause of lost accuracy, with the change to make.

    Attributes:
        cause: the cause.
        layer: the layer that computes the tensor or owns the weight.
        tensor: the tensor or weight.
        quantizer: name of its quantizer.
        only: effect of quantizing only this tensor.
        without: remaining effect with only this tensor in float.
        message: the cause in a sentence.
        change: ``QuantizationSpec`` entries of the fix; empty without one.
        advice: further advice; empty = none.
        channels: the affected channels, counted from 0; empty = all.
        minor: whether the effect is below 5 % of the effect of the whole quantization, or the
            channels are zero in every sample.
    """

    cause: Cause
    layer: str
    tensor: str
    quantizer: str
    only: float
    without: float
    message: str
    change: tuple[LayerConfig, ...] = ()
    advice: str = ""
    channels: tuple[int, ...] = ()
    minor: bool = False

    @property
    def effects(self) -> str:
        """Both effects in a sentence."""
        only, without = significant(self.only), significant(self.without)
        return f"Alone it costs {only}; without it {without} is left."

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON types."""
        return {
            **asdict(self),
            "change": [entry.to_dict() for entry in self.change],
            "channels": list(self.channels),
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis:
    """Layers of a quantized model that lose accuracy, with causes and fixes.

    Attributes:
        model: name of the model.
        measure: effect measure: ``"kl"``, the mean Kullback-Leibler divergence of the class
            probabilities from the float model's in nats; ``"error"``, the root mean square of the
            difference of the outputs over their standard deviation.
        samples: number of measured samples.
        total: effect of the whole quantization.
        layers: effect of each layer, the largest first.
        tensors: error of each tensor and weight, in the order of the model.
        findings: causes, major ones first, then by decreasing effect.
        skipped: layers without quantization support, each with a reason.
    """

    model: str
    measure: str
    samples: int
    total: float
    layers: tuple[LayerEffect, ...]
    tensors: tuple[TensorError, ...]
    findings: tuple[LayerFinding, ...]
    skipped: tuple[SkippedLayer, ...] = ()

    def spec(self, base: QuantizationSpec | None = None) -> QuantizationSpec:
        """Return the changes of all major findings as one spec.

        Args:
            base: initial entries; the changes follow them and take precedence.
        """
        entries = dict[str, LayerConfig]()
        for finding in self.findings:
            for entry in () if finding.minor else finding.change:
                # Findings are sorted by effect: of two changes to a layer, the first one counts.
                entries.setdefault(entry.name, entry)
        kept = [] if base is None else [e for e in base.layers if e.name not in entries]
        return QuantizationSpec([*kept, *entries.values()])

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON types; an infinite SQNR is null."""
        plain = {
            "model": self.model,
            "measure": self.measure,
            "samples": self.samples,
            "total": self.total,
            "layers": [asdict(layer) for layer in self.layers],
            "tensors": [asdict(tensor) for tensor in self.tensors],
            "findings": [finding.to_dict() for finding in self.findings],
            "skipped": [skipped_to_dict(layer) for layer in self.skipped],
        }
        return cast("dict[str, Any]", _finite(plain))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Diagnosis:
        """Return the diagnosis of a ``to_dict`` result.

        Raises:
            SpecError: the data is not a diagnosis.
        """
        try:
            return cls(
                model=str(values["model"]),
                measure=str(values["measure"]),
                samples=int(values["samples"]),
                total=float(values["total"]),
                layers=tuple(map(_layer, values["layers"])),
                tensors=tuple(map(_tensor, values["tensors"])),
                findings=tuple(map(_finding, values["findings"])),
                skipped=tuple(SkippedLayer(**item) for item in values["skipped"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SpecError(
                f"This is not a diagnosis: {type(error).__name__}: {error}. Expected the "
                "result of Diagnosis.to_dict."
            ) from error

    def __repr__(self) -> str:
        """Return the diagnosis in a line."""
        return (
            f"<Diagnosis of {self.model!r}: {self.measure} {self.total:.3g}, "
            f"{len(self.layers)} layers, {len(self.findings)} findings>"
        )

    def __str__(self) -> str:
        """Return the diagnosis as text of 80 columns."""
        return as_text(self)


def _finite(value: Any) -> Any:
    """Return plain data with None for non-finite numbers, and lists for tuples."""
    # JSON has no infinity; ``_number`` reads None back as one.
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_finite, value))
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _known(kind: Any, values: Mapping[str, Any], **changed: Any) -> dict[str, Any]:
    # Ignore unknown keys, such as those of a newer version.
    names = {each.name for each in fields(kind)}
    return {key: item for key, item in {**values, **changed}.items() if key in names}


def _tensor(values: Mapping[str, Any]) -> TensorError:
    numbers = {
        key: _number(values[key]) for key in ("sqnr_db", "channel_sqnr_db", "channel_spread")
    }
    return TensorError(**_known(TensorError, values, readers=tuple(values["readers"]), **numbers))


def _layer(values: Mapping[str, Any]) -> LayerEffect:
    return LayerEffect(
        layer=str(values["layer"]), weights=_part(values["weights"]), inputs=_part(values["inputs"])
    )


def _part(values: Mapping[str, Any] | None) -> PartEffect | None:
    if values is None:
        return None
    return PartEffect(
        quantizers=tuple(values["quantizers"]),
        only=_number(values["only"]),
        without=_number(values["without"]),
        sqnr_db=_number(values["sqnr_db"]),
    )


def _finding(values: Mapping[str, Any]) -> LayerFinding:
    change = QuantizationSpec.from_list(values["change"]).layers
    given = _known(LayerFinding, values, change=tuple(change), channels=tuple(values["channels"]))
    return LayerFinding(**given)


def _number(value: Any) -> float:
    return float("inf") if value is None else float(value)


def as_text(diagnosis: Diagnosis, *, every_layer: bool = False) -> str:
    """Return a diagnosis as text; ``every_layer`` shows all rows and minor findings."""
    lines = [
        f"{diagnosis.model}: quantized as a whole {significant(diagnosis.total)} on "
        f"{diagnosis.samples} samples",
        f"({MEASURES[diagnosis.measure]})",
        "",
        *_table(diagnosis, every_layer),
        "",
    ]
    shown = [each for each in diagnosis.findings if every_layer or not each.minor]
    for place, finding in enumerate(shown, 1):
        lines += [*_finding_lines(place, finding), ""]
    if not shown:
        lines += _wrapped(nothing_found(diagnosis), "")
    for layer in diagnosis.skipped:
        lines += _wrapped(f"In float: {layer.layer} ({layer.class_name}): {layer.detail}", "  ")
    return "\n".join(lines).rstrip()


def nothing_found(diagnosis: Diagnosis) -> str:
    """Return the summary of a diagnosis without major findings."""
    largest = diagnosis.layers[0] if diagnosis.layers else None
    if largest is None or diagnosis.total < _NOTHING:
        return "Quantization costs nothing measurable."
    share = largest.largest / diagnosis.total
    return (
        f"No layer stands out: the largest effect, {largest.layer}'s, is {share:.0%} of the whole. "
        "Leaving layers in float gains little; bias correction, another calibrator or fine-tuning "
        "(qatline finetune) work on all of them."
    )


def _table(diagnosis: Diagnosis, every_layer: bool) -> Iterator[str]:
    yield f"{'':{_NAME}}  {'only it quantized':>18}  {'all but it':>18}  {'SQNR in dB':>12}"
    heads = f"{'weights':>9}{'inputs':>9}  {'weights':>9}{'inputs':>9}  {'w.':>6}{'in':>6}"
    yield f"{'layer':{_NAME}}  {heads}"
    rows = diagnosis.layers if every_layer else diagnosis.layers[:_ROWS]
    for row in rows:
        yield _row(row)
    if left := len(diagnosis.layers) - len(rows):
        yield f"... and {left} layers with smaller effects"


def _row(row: LayerEffect) -> str:
    weights, inputs = row.weights, row.inputs
    only = f"{_only(weights):>9}{_only(inputs):>9}"
    without = f"{_without(weights):>9}{_without(inputs):>9}"
    noise = f"{_sqnr(weights):>6}{_sqnr(inputs):>6}"
    return f"{short_name(row.layer):{_NAME}}  {only}  {without}  {noise}"


def short_name(name: str, width: int = _NAME) -> str:
    """Return a name shortened to a width, with an ellipsis in the middle."""
    if len(name) <= width:
        return name
    half = (width - 1) // 2
    return f"{name[: width - half - 1]}…{name[-half:]}"


def _only(part: PartEffect | None) -> str:
    return "-" if part is None else significant(part.only)


def _without(part: PartEffect | None) -> str:
    return "-" if part is None else significant(part.without)


def _sqnr(part: PartEffect | None) -> str:
    if part is None:
        return "-"
    return f"{part.sqnr_db:.0f}" if math.isfinite(part.sqnr_db) else "exact"


def _finding_lines(place: int, finding: LayerFinding) -> Iterator[str]:
    yield from _wrapped(f"{place}. {finding.layer}: {finding.cause} in {finding.tensor}", "   ")
    text = f"{finding.message} {finding.effects} {finding.advice}".rstrip()
    yield from (f"   {line}" for line in _wrapped(text, ""))
    for entry in finding.change:
        lines = [f"{key}: {_plain(value)}" for key, value in entry.to_dict().items()]
        yield f"     - {lines[0]}"
        for line in lines[1:]:
            yield f"       {line}"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH - 3, subsequent_indent=indent)
