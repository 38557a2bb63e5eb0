"""QuantizationPlan: quantizers and unquantized layers of a model, with reasons."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from qat_lib.core.plan_entries import (
    KINDS,
    Consumer,
    QuantizerEntry,
    SkippedLayer,
    checked,
    entry_from_dict,
    entry_to_dict,
    refuse_unknown_keys,
    skipped_from_dict,
    skipped_to_dict,
)
from qat_lib.errors import PlanError
from qat_lib.files.text_files import parse_json, read_json
from qat_lib.files.whole_files import write_text
from qat_lib.support.digests import sha256_of_json

__all__ = [
    "KINDS",
    "PLAN_VERSION",
    "Consumer",
    "PlanLike",
    "QuantizationPlan",
    "QuantizerEntry",
    "SkippedLayer",
    "as_plan",
]

PLAN_VERSION = 1


@dataclass(frozen=True, kw_only=True, repr=False)
class QuantizationPlan:
    """Quantizers that ``qat_lib.apply_plan`` adds to a model.

    A plan is plain data that can be printed, compared (``diff``), written (``save``), read
    (``load``), changed (``without``) and applied.

    Attributes:
        model: name of the model.
        mode: ``"full"`` or ``"partial"``.
        quantizers: an entry for each quantizer.
        skipped: an entry for each layer without quantizers.
        wrapped: names of the layers that get a wrapper.
        cpu: target kind of CPU (``qat_lib.options.Cpu``); None for TensorRT.
    """

    model: str
    mode: str
    quantizers: tuple[QuantizerEntry, ...]
    skipped: tuple[SkippedLayer, ...]
    wrapped: tuple[str, ...] = ()
    cpu: str | None = None

    def by_kind(self, kind: str) -> list[QuantizerEntry]:
        """Return the entries of one kind: ``"activation"``, ``"weight"`` or ``"internal"``."""
        return [entry for entry in self.quantizers if entry.kind == kind]

    def without(self, *names: str) -> QuantizationPlan:
        """Return a plan without the named quantizers.

        Raises:
            PlanError: no quantizer has that name.
        """
        known = {entry.name for entry in self.quantizers}
        if missing := [name for name in names if name not in known]:
            raise PlanError(
                f"The plan has no quantizer {missing[0]!r}. Names: {', '.join(sorted(known))}."
            )
        return replace(self, quantizers=tuple(e for e in self.quantizers if e.name not in names))

    def with_range_policy(self, policy: str) -> QuantizationPlan:
        """Return a plan with ``policy`` for activations of policy ``"ema"``."""
        changed = []
        for entry in self.quantizers:
            # A policy other than the default is kept; weights have policies of their own.
            is_open = entry.kind != "weight" and entry.range_policy == "ema"
            changed.append(replace(entry, range_policy=policy) if is_open else entry)
        return replace(self, quantizers=tuple(changed))

    def diff(self, other: QuantizationPlan) -> list[str]:
        """Return the differences: ``-`` only here, ``+`` only in ``other``, ``~`` changed."""
        mine = {entry.name: entry for entry in self.quantizers}
        theirs = {entry.name: entry for entry in other.quantizers}
        lines = []
        for name in sorted(mine.keys() | theirs.keys()):
            if name not in theirs:
                lines.append(f"- {name}: {mine[name].tensor} ({mine[name].reason})")
            elif name not in mine:
                lines.append(f"+ {name}: {theirs[name].tensor} ({theirs[name].reason})")
            elif mine[name] != theirs[name]:
                lines.append(f"~ {name}: {_changes(mine[name], theirs[name])}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "version": PLAN_VERSION,
            "model": self.model,
            "mode": self.mode,
            "quantizers": list(map(entry_to_dict, self.quantizers)),
            "skipped": list(map(skipped_to_dict, self.skipped)),
            "wrapped": list(self.wrapped),
            "cpu": self.cpu,
        }

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_dict(cls, data: Any) -> QuantizationPlan:
        """Build a plan from the result of ``to_dict``.

        Raises:
            PlanError: the data is not a plan, or has another version.
        """
        try:
            refuse_unknown_keys(
                "the plan",
                data,
                ("version", "model", "mode", "quantizers", "skipped", "wrapped", "cpu"),
            )
            if data["version"] != PLAN_VERSION:
                raise PlanError(
                    f"Expected a plan of version {PLAN_VERSION}. Received version: "
                    f"{data['version']!r}."
                )
            return cls(
                model=checked("model", data["model"], str),
                mode=checked("mode", data["mode"], str),
                quantizers=tuple(entry_from_dict(item) for item in data["quantizers"]),
                skipped=tuple(skipped_from_dict(item) for item in data["skipped"]),
                wrapped=tuple(checked("wrapped", name, str) for name in data.get("wrapped", ())),
                cpu=None if data.get("cpu") is None else checked("cpu", data["cpu"], str),
            )
        # Plans are edited manually: a missing key or a wrong type is the user's error, not a bug.
        except (KeyError, TypeError, AttributeError) as error:
            raise PlanError(
                f"This is not a quantization plan: {type(error).__name__}: {error}."
            ) from error

    @classmethod
    def from_json(cls, text: str) -> QuantizationPlan:
        """Build a plan from JSON.

        Raises:
            PlanError: the text is not JSON or not a plan.
        """
        return cls.from_dict(parse_json(text, "The quantization plan", error=PlanError))

    @classmethod
    def load(cls, path: str | Path) -> QuantizationPlan:
        """Read a plan from the JSON file ``path``.

        Raises:
            PlanError: the file can't be read, exceeds 16 MiB, is not JSON, or contains no plan.
        """
        what = "the JSON of a quantization plan"
        return cls.from_dict(read_json(path, what=what, error=PlanError))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON to ``path``, atomically."""
        write_text(path, self.to_json())

    def digest(self) -> str:
        """Return the SHA-256 of the plan's content, in hexadecimal."""
        return sha256_of_json(self.to_dict())

    def __repr__(self) -> str:
        """Return a one-line summary."""
        counts = f"{len(self.quantizers)} quantizers, {len(self.skipped)} skipped layers"
        return f"<QuantizationPlan of {self.model!r}, {self.mode} mode: {counts}>"

    def __str__(self) -> str:
        """Return the plan as a table."""
        rows = [("tensor", "read by", "quantizer", "why")]
        for entry in self.quantizers:
            rows.append((entry.tensor, _readers(entry), entry.name, entry.reason))
        left = [("layer", "class", "not quantized", "")]
        for skipped in self.skipped:
            left.append((skipped.layer, skipped.class_name, skipped.reason, skipped.detail))
        kind = f"{self.mode} mode" + (f", for {self.cpu} CPUs" if self.cpu else "")
        title = f"{self.model}: {len(self.quantizers)} quantizers ({kind})"
        return "\n".join([title, *_table(rows), "", *_table(left)])


PlanLike: TypeAlias = QuantizationPlan | Mapping[str, Any] | str | os.PathLike[str]
"""A plan, its dict form, or the path of its JSON."""


def as_plan(plan: PlanLike) -> QuantizationPlan:
    """Return a plan from a plan, dict or JSON path.

    Raises:
        PlanError: ``plan`` is not a quantization plan, or its file can't be read.
    """
    if isinstance(plan, QuantizationPlan):
        return plan
    if isinstance(plan, Mapping):
        return QuantizationPlan.from_dict(plan)
    if isinstance(plan, str | os.PathLike):
        return QuantizationPlan.load(Path(plan))
    raise PlanError(
        "Expected a QuantizationPlan, its dict form or the path of its JSON. Received: "
        f"{type(plan).__name__}."
    )


def _readers(entry: QuantizerEntry) -> str:
    return ", ".join(f"{c.layer}[{c.input}]" for c in entry.consumers) or "-"


def _changes(mine: QuantizerEntry, theirs: QuantizerEntry) -> str:
    old, new = asdict(mine), asdict(theirs)
    changed = [key for key in old if old[key] != new[key]]
    return ", ".join(f"{key}: {old[key]} -> {new[key]}" for key in changed)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table; the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = map(str.ljust, row, widths)
        lines.append("  ".join(cells).rstrip())
    rule = "  ".join("-" * width for width in widths)
    return [lines[0], rule, *lines[1:]]
