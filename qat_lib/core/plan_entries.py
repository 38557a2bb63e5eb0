"""Entries of a quantization plan and their plain form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from qat_lib.core.layer_config import CALIBRATORS, RANGE_POLICIES, WEIGHT_RANGE_POLICIES
from qat_lib.errors import PlanError

_T = TypeVar("_T")

KINDS = ("activation", "weight", "internal")


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """One reader of a tensor: input number ``input`` of the call ``layer``."""

    layer: str
    input: int


@dataclass(frozen=True, kw_only=True)
class QuantizerEntry:
    """One quantizer.

    Attributes:
        name: name of the TensorQuantizer layer, in Keras and in ONNX.
        kind: ``"activation"``, ``"weight"``, or ``"internal"`` for a tensor inside a layer.
        tensor: ``"<call>:<output>"`` for an activation, ``"<layer>/<weight>"`` for a weight or
            internal tensor, ``"<layer>/<inner layer>/<weight>"`` for a nested layer.
        consumers: readers of the quantized tensor (empty for a weight); ``"<layer>/<inner layer>"``
            for an internal tensor.
        channel_axes: per-channel axes, in Keras's layout; None = one range.
        group: name of the tied group that shares this quantizer's range, or None.
        num_bits: width of the integers.
        unsigned: whether the integers are unsigned (255 steps over ``[0, amax]``); not supported by
            TensorRT.
        calibrator: calibrator of this tensor; None = the one given to ``calibrate``.
        range_policy: behaviour of the range in training.
        pair_axis: axis of a weight along which neighbours (0 and 1, 2 and 3, ...) share a sum of 16
            bits on the target CPU: the range covers the sum of each pair. None = weights are
            independent.
        reason: reason for the quantizer.

    Raises:
        PlanError: a value is not allowed for a quantizer.
    """

    name: str
    kind: str
    tensor: str
    consumers: tuple[Consumer, ...] = ()
    channel_axes: tuple[int, ...] | None = None
    group: str | None = None
    num_bits: int = 8
    unsigned: bool = False
    calibrator: str | None = None
    range_policy: str = "ema"
    pair_axis: int | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        for key, value, allowed in (
            ("kind", self.kind, KINDS),
            ("calibrator", self.calibrator, (None, *CALIBRATORS)),
            ("range_policy", self.range_policy, (*RANGE_POLICIES, *WEIGHT_RANGE_POLICIES)),
        ):
            if value not in allowed:
                known = ", ".join(map(str, dict.fromkeys(allowed)))
                raise PlanError(
                    f"Quantizer {self.name!r}: expected {key} to be one of {known}. Received: "
                    f"{value!r:.100}."
                )
        if not 2 <= self.num_bits <= 16:
            raise PlanError(
                f"Quantizer {self.name!r}: expected num_bits from 2 to 16. Received: "
                f"{self.num_bits!r:.100}."
            )

    @property
    def layer(self) -> str:
        """The layer whose output, weight or inner tensor is quantized."""
        if self.kind == "activation":
            # Later calls of a shared layer are named "<layer>@1", "<layer>@2".
            call = self.tensor.partition(":")[0]
            return call.partition("@")[0]
        return self.tensor.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class SkippedLayer:
    """A layer without quantizers: class, named reason and detail."""

    layer: str
    class_name: str
    reason: str
    detail: str = ""


def quantizer_name(tensor: str) -> str:
    """Return the quantizer name of the weight or inner tensor ``<layer>/<path>/<weight>``."""
    return f"{tensor.replace('/', '_')}_quantizer"


_ENTRY_KEYS = (
    *("name", "kind", "tensor", "consumers", "channel_axes", "group"),
    *("num_bits", "unsigned", "calibrator", "range_policy", "pair_axis", "reason"),
)


def entry_to_dict(entry: QuantizerEntry) -> dict[str, Any]:
    axes = entry.channel_axes
    return {
        "name": entry.name,
        "kind": entry.kind,
        "tensor": entry.tensor,
        "consumers": [{"layer": c.layer, "input": c.input} for c in entry.consumers],
        "channel_axes": None if axes is None else list(axes),
        "group": entry.group,
        "num_bits": entry.num_bits,
        "unsigned": entry.unsigned,
        "calibrator": entry.calibrator,
        "range_policy": entry.range_policy,
        "pair_axis": entry.pair_axis,
        "reason": entry.reason,
    }


def checked(key: str, value: Any, kind: type[_T]) -> _T:
    """Return a value of the expected type; booleans do not count as numbers."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise PlanError(
            f"This is not a quantization plan: expected {key} to be {kind.__name__}. Received: "
            f"{value!r:.100}."
        )
    return value


def refuse_unknown_keys(what: str, data: dict[str, Any], known: tuple[str, ...]) -> None:
    """Reject unknown keys, such as misspelt ones."""
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise PlanError(
            f"This is not a quantization plan: {what} has the unknown key {unknown[0]!r:.100}. "
            f"Known keys: {', '.join(known)}."
        )


def _text_or_none(key: str, value: Any) -> str | None:
    return None if value is None else checked(key, value, str)


def entry_from_dict(item: dict[str, Any]) -> QuantizerEntry:
    refuse_unknown_keys("a quantizer", item, _ENTRY_KEYS)
    axes = item.get("channel_axes")
    return QuantizerEntry(
        name=checked("name", item["name"], str),
        kind=checked("kind", item["kind"], str),
        tensor=checked("tensor", item["tensor"], str),
        consumers=tuple(_consumer(consumer) for consumer in item.get("consumers", ())),
        channel_axes=None
        if axes is None
        else tuple(checked("channel_axes", axis, int) for axis in axes),
        group=_text_or_none("group", item.get("group")),
        num_bits=checked("num_bits", item.get("num_bits", 8), int),
        unsigned=checked("unsigned", item.get("unsigned", False), bool),
        calibrator=_text_or_none("calibrator", item.get("calibrator")),
        range_policy=checked("range_policy", item.get("range_policy", "ema"), str),
        pair_axis=None
        if item.get("pair_axis") is None
        else checked("pair_axis", item["pair_axis"], int),
        reason=checked("reason", item.get("reason", ""), str),
    )


def _consumer(item: dict[str, Any]) -> Consumer:
    return Consumer(
        layer=checked("layer", item["layer"], str), input=checked("input", item["input"], int)
    )


def skipped_to_dict(skipped: SkippedLayer) -> dict[str, Any]:
    """Return the plain form of a layer without quantizers."""
    return {
        "layer": skipped.layer,
        "class_name": skipped.class_name,
        "reason": skipped.reason,
        "detail": skipped.detail,
    }


def skipped_from_dict(item: dict[str, Any]) -> SkippedLayer:
    return SkippedLayer(
        layer=checked("layer", item["layer"], str),
        class_name=checked("class_name", item["class_name"], str),
        reason=checked("reason", item["reason"], str),
        detail=checked("detail", item.get("detail", ""), str),
    )
