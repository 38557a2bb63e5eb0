"""QuantizationPlan: every quantizer that a model will get and every layer that it leaves alone, with reasons."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from qat_lib.errors import PlanError
from qat_lib.spec import CALIBRATORS, RANGE_POLICIES, WEIGHT_RANGE_POLICIES
from qat_lib.text_files import parse_json, read_json

_T = TypeVar("_T")

PLAN_VERSION = 1
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
        kind: ``"activation"``, ``"weight"``, or ``"internal"`` for a tensor inside of a layer.
        tensor: ``"<call>:<output>"`` for an activation, ``"<layer>/<weight>"`` for a weight or
            internal tensor; of a layer inside of another ``"<layer>/<inner layer>/<weight>"``.
        consumers: who reads the quantized tensor (empty for a weight), of an internal one
            ``"<layer>/<inner layer>"``.
        channel_axes: axes with a range of their own, in Keras's layout; None = one range.
        group: name of the tied group that shares this quantizer's range, or None.
        num_bits: width of the integers.
        unsigned: whether the integers are unsigned (255 steps over ``[0, amax]``), which TensorRT
            does not run.
        calibrator: calibrator of this tensor; None = the one given to ``calibrate``.
        range_policy: what training does to the range.
        reason: why the tensor is quantized.

    Raises:
        PlanError: a value is none of those that a quantizer can have.
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
                    f"Quantizer {self.name!r}: expected {key} to be one of {known}. Received: {value!r:.100}."
                )
        if not 2 <= self.num_bits <= 16:
            raise PlanError(
                f"Quantizer {self.name!r}: expected bits from 2 to 16. Received: {self.num_bits!r:.100}."
            )

    @property
    def layer(self) -> str:
        """The layer whose output, weight or inner tensor is quantized."""
        if self.kind == "activation":
            call = self.tensor.partition(":")[0]
            return call.partition("@")[0]
        return self.tensor.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class SkippedLayer:
    """One layer that gets no quantizer: its class, the named reason and, in words, the detail."""

    layer: str
    class_name: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class QuantizationPlan:
    """What :func:`qat_lib.apply_plan` will do to a model.

    It is plain data: print it, compare it (:meth:`diff`), write it (:meth:`save`), read it back
    (:meth:`load`), change it (:meth:`without`), and apply it.
    """

    model: str
    mode: str
    quantizers: tuple[QuantizerEntry, ...]
    skipped: tuple[SkippedLayer, ...]
    wrapped: tuple[str, ...] = ()

    def by_kind(self, kind: str) -> list[QuantizerEntry]:
        """Return the entries of one kind: ``"activation"``, ``"weight"`` or ``"internal"``."""
        return [entry for entry in self.quantizers if entry.kind == kind]

    def without(self, *names: str) -> QuantizationPlan:
        """Return a plan that lacks the named quantizers.

        Raises:
            PlanError: there is no quantizer of that name.
        """
        known = {entry.name for entry in self.quantizers}
        if missing := [name for name in names if name not in known]:
            raise PlanError(
                f"The plan has no quantizer {missing[0]!r}. Names: {', '.join(sorted(known))}."
            )
        return replace(self, quantizers=tuple(e for e in self.quantizers if e.name not in names))

    def with_range_policy(self, policy: str) -> QuantizationPlan:
        """Return a plan in which every activation whose policy the spec left open (``"ema"``) has ``policy``."""
        open_policy = [e.kind != "weight" and e.range_policy == "ema" for e in self.quantizers]
        changed = [
            replace(e, range_policy=policy) if o else e
            for e, o in zip(self.quantizers, open_policy, strict=True)
        ]
        return replace(self, quantizers=tuple(changed))

    def diff(self, other: QuantizationPlan) -> list[str]:
        """Return what differs, a line each: ``-`` only here, ``+`` only in ``other``, ``~`` changed."""
        mine = {entry.name: entry for entry in self.quantizers}
        theirs = {entry.name: entry for entry in other.quantizers}
        lines = []
        for name in sorted(mine.keys() | theirs.keys()):
            if name not in theirs:
                lines.append(f"- {name}: {mine[name].tensor} ({mine[name].reason})")
            elif name not in mine:
                lines.append(f"+ {name}: {theirs[name].tensor} ({theirs[name].reason})")
            elif mine[name] != theirs[name]:
                a, b = asdict(mine[name]), asdict(theirs[name])
                changes = ", ".join(f"{key}: {a[key]} -> {b[key]}" for key in a if a[key] != b[key])
                lines.append(f"~ {name}: {changes}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "version": PLAN_VERSION,
            "model": self.model,
            "mode": self.mode,
            "quantizers": [_entry_dict(entry) for entry in self.quantizers],
            "skipped": [
                {"layer": s.layer, "class": s.class_name, "reason": s.reason, "detail": s.detail}
                for s in self.skipped
            ],
            "wrapped": list(self.wrapped),
        }

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_dict(cls, data: Any) -> QuantizationPlan:
        """Build a plan from what :meth:`to_dict` gave.

        Raises:
            PlanError: the data is no plan, or one of another version.
        """
        try:
            _check_keys(
                "the plan", data, ("version", "model", "mode", "quantizers", "skipped", "wrapped")
            )
            if data["version"] != PLAN_VERSION:
                raise PlanError(
                    f"Expected a plan of version {PLAN_VERSION}. Received version: {data['version']!r}."
                )
            return cls(
                model=_checked("model", data["model"], str),
                mode=_checked("mode", data["mode"], str),
                quantizers=tuple(_quantizer(item) for item in data["quantizers"]),
                skipped=tuple(_skipped(item) for item in data["skipped"]),
                wrapped=tuple(_checked("wrapped", name, str) for name in data.get("wrapped", ())),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise PlanError(
                f"This is not a quantization plan: {type(error).__name__}: {error}."
            ) from error

    @classmethod
    def from_json(cls, text: str) -> QuantizationPlan:
        """Build a plan from JSON.

        Raises:
            PlanError: the text is not JSON or no plan.
        """
        return cls.from_dict(parse_json(text, "The quantization plan", error=PlanError))

    @classmethod
    def load(cls, path: str | Path) -> QuantizationPlan:
        """Read a plan from the JSON file ``path``.

        Raises:
            PlanError: the file can't be read, has more than 16 MiB, is not JSON, or holds no plan.
        """
        what = "the JSON of a quantization plan"
        return cls.from_dict(read_json(path, what=what, error=PlanError))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON to ``path``."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    def digest(self) -> str:
        """Return the SHA-256 of the plan's content, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def __repr__(self) -> str:
        """Return the plan in a line."""
        counts = f"{len(self.quantizers)} quantizers, {len(self.skipped)} skipped layers"
        return f"<QuantizationPlan of {self.model!r}, {self.mode} mode: {counts}>"

    def __str__(self) -> str:
        """Return the plan as a table."""
        rows = [("tensor", "read by", "quantizer", "why")]
        rows += [(e.tensor, _readers(e), e.name, e.reason) for e in self.quantizers]
        left = [("layer", "class", "left alone", "")]
        left += [(s.layer, s.class_name, s.reason, s.detail) for s in self.skipped]
        title = f"{self.model}: {len(self.quantizers)} quantizers ({self.mode} mode)"
        return "\n".join([title, *_table(rows), "", *_table(left)])


_ENTRY_KEYS = (
    *("name", "kind", "tensor", "consumers", "channel_axes", "group"),
    *("bits", "unsigned", "calibrator", "range_policy", "reason"),
)


def _entry_dict(entry: QuantizerEntry) -> dict[str, Any]:
    axes = entry.channel_axes
    return {
        "name": entry.name,
        "kind": entry.kind,
        "tensor": entry.tensor,
        "consumers": [{"layer": c.layer, "input": c.input} for c in entry.consumers],
        "channel_axes": None if axes is None else list(axes),
        "group": entry.group,
        "bits": entry.num_bits,
        "unsigned": entry.unsigned,
        "calibrator": entry.calibrator,
        "range_policy": entry.range_policy,
        "reason": entry.reason,
    }


def _checked(key: str, value: Any, kind: type[_T]) -> _T:
    """Return a value that has the type that a plan needs there; a boolean is no number."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise PlanError(
            f"This is not a quantization plan: expected {key} to be {kind.__name__}. Received: {value!r:.100}."
        )
    return value


def _check_keys(what: str, data: dict[str, Any], known: tuple[str, ...]) -> None:
    """Refuse keys that nothing would read, such as a misspelt one."""
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise PlanError(
            f"This is not a quantization plan: {what} has the unknown key {unknown[0]!r:.100}. "
            f"Known keys: {', '.join(known)}."
        )


def _text_or_none(key: str, value: Any) -> str | None:
    return None if value is None else _checked(key, value, str)


def _quantizer(item: dict[str, Any]) -> QuantizerEntry:
    _check_keys("a quantizer", item, _ENTRY_KEYS)
    axes = item.get("channel_axes")
    return QuantizerEntry(
        name=_checked("name", item["name"], str),
        kind=_checked("kind", item["kind"], str),
        tensor=_checked("tensor", item["tensor"], str),
        consumers=tuple(_consumer(consumer) for consumer in item.get("consumers", ())),
        channel_axes=None
        if axes is None
        else tuple(_checked("channel_axes", axis, int) for axis in axes),
        group=_text_or_none("group", item.get("group")),
        num_bits=_checked("bits", item.get("bits", 8), int),
        unsigned=_checked("unsigned", item.get("unsigned", False), bool),
        calibrator=_text_or_none("calibrator", item.get("calibrator")),
        range_policy=_checked("range_policy", item.get("range_policy", "ema"), str),
        reason=_checked("reason", item.get("reason", ""), str),
    )


def _consumer(item: dict[str, Any]) -> Consumer:
    return Consumer(
        layer=_checked("layer", item["layer"], str), input=_checked("input", item["input"], int)
    )


def _skipped(item: dict[str, Any]) -> SkippedLayer:
    return SkippedLayer(
        layer=_checked("layer", item["layer"], str),
        class_name=_checked("class", item["class"], str),
        reason=_checked("reason", item["reason"], str),
        detail=_checked("detail", item.get("detail", ""), str),
    )


def _readers(entry: QuantizerEntry) -> str:
    return ", ".join(f"{c.layer}[{c.input}]" for c in entry.consumers) or "-"


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = list(rows)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
