"""QuantizationSpec: the requests of the user or of a custom Q/DQ case."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from qat_lib.core.layer_config import (
    CALIBRATORS,
    RANGE_POLICIES,
    WEIGHT_RANGE_POLICIES,
    LayerConfig,
)
from qat_lib.errors import SpecError
from qat_lib.files.strict_yaml import parse_yaml, read_yaml
from qat_lib.files.text_files import parse_json
from qat_lib.files.whole_files import write_text

__all__ = [
    "CALIBRATORS",
    "RANGE_POLICIES",
    "WEIGHT_RANGE_POLICIES",
    "LayerConfig",
    "QuantizationSpec",
]


@dataclass
class QuantizationSpec:
    """Per-layer deviations from the default quantization.

    Examples:
        >>> spec = QuantizationSpec()
        >>> spec = spec.add("conv2d_1", quantize_input=False).add("Add", is_keras_class=True)
        >>> [entry.name for entry in spec.add(r"block3_.*", is_regex=True).layers]
        ['conv2d_1', 'Add', 'block3_.*']

    A layer name wins over a regular expression, a regular expression over a class, and any of them
    over the default; among equals the last entry wins. A layer with ``quantize_input`` and
    ``quantize_weight`` both False is not quantized.
    """

    layers: list[LayerConfig] = field(default_factory=list)

    def add(
        self,
        name: str | Sequence[str],
        is_keras_class: bool | Sequence[bool] = False,
        quantize_input: bool | Sequence[bool] = True,
        quantize_weight: bool | Sequence[bool] = True,
        quantization_index: int | Sequence[Any] | None = None,
        *,
        is_regex: bool | Sequence[bool] = False,
        num_bits: int | Sequence[int | None] | None = None,
        per_channel: bool | Sequence[bool | None] | None = None,
        calibrator: str | Sequence[str | None] | None = None,
        range_policy: str | Sequence[str | None] | None = None,
        weight_range_policy: str | Sequence[str | None] | None = None,
        weight_num_bits: int | Sequence[int | None] | None = None,
        reason: str | Sequence[str] = "",
    ) -> QuantizationSpec:
        """Add one entry, or several if ``name`` is a list.

        With a list of names, every other argument is one value for all of them or a list of equal
        length. For ``quantization_index`` that list contains one item (None, a number or a list of
        numbers) for each name.

        Returns:
            The spec itself, for chained calls.

        Raises:
            SpecError: a value is invalid, or the length of a list differs from ``name``.
        """
        values = {
            "is_keras_class": is_keras_class,
            "is_regex": is_regex,
            "quantize_input": quantize_input,
            "quantize_weight": quantize_weight,
            "quantization_index": quantization_index,
            "num_bits": num_bits,
            "per_channel": per_channel,
            "calibrator": calibrator,
            "range_policy": range_policy,
            "weight_range_policy": weight_range_policy,
            "weight_num_bits": weight_num_bits,
            "reason": reason,
        }
        if not isinstance(name, (list, tuple)):
            single: Any = name
            self.layers.append(LayerConfig(name=single, **_only_values(single, values)))
            return self
        names = list(name)
        columns = [_column(key, value, names) for key, value in values.items()]
        # All entries are built before one is added: an invalid one leaves the spec unchanged.
        entries: list[LayerConfig] = []
        for entry_name, *row in zip(names, *columns, strict=True):
            entries.append(LayerConfig(name=entry_name, **dict(zip(values, row, strict=True))))
        self.layers.extend(entries)
        return self

    def to_list(self) -> list[dict[str, Any]]:
        """Return the entries as plain data, ready for JSON or YAML."""
        return [entry.to_dict() for entry in self.layers]

    @classmethod
    def from_list(cls, entries: Iterable[Any]) -> QuantizationSpec:
        """Build a spec from the result of ``to_list``.

        Raises:
            SpecError: an entry is not a mapping or has an unknown key.
        """
        if isinstance(entries, (str, bytes, dict)) or not isinstance(entries, Iterable):
            raise SpecError(
                f"A quantization spec is a list of entries. Received: {type(entries).__name__}."
            )
        return cls([_entry(item) for item in entries])

    def to_yaml(self, path: str | Path | None = None) -> str:
        """Return the spec as YAML, and write it to ``path`` if given."""
        text: str = yaml.safe_dump(self.to_list(), sort_keys=False)
        if path is not None:
            write_text(path, text)
        return text

    @classmethod
    def from_yaml(cls, source: str | Path) -> QuantizationSpec:
        """Read a spec from a YAML or JSON file, or YAML text.

        Args:
            source: path of the file; a string of several lines is taken as YAML text.

        Raises:
            SpecError: the file can't be read, is not YAML, or does not contain a list of entries.
        """
        # File names contain no newline in practice.
        if "\n" not in str(source):
            return cls.load(source)
        data = parse_yaml(str(source), "The quantization spec", error=SpecError)
        return cls.from_list(data if data is not None else [])

    def save(self, path: str | Path) -> None:
        """Write the spec to ``path`` as JSON or YAML.

        The format is JSON if the path ends in ``.json``. The file is written atomically.
        """
        if Path(path).suffix == ".json":
            write_text(path, self.to_json())
        else:
            self.to_yaml(path)

    @classmethod
    def load(cls, path: str | Path) -> QuantizationSpec:
        """Read a spec from the YAML or JSON file ``path``.

        Raises:
            SpecError: the file can't be read, is not YAML, or does not contain a list of entries.
        """
        data = read_yaml(path, what="a quantization spec", error=SpecError)
        return cls.from_list(data if data is not None else [])

    def to_json(self) -> str:
        """Return the spec as JSON."""
        return json.dumps(self.to_list(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> QuantizationSpec:
        """Build a spec from JSON.

        Raises:
            SpecError: the text is not JSON or does not contain a list of entries.
        """
        return cls.from_list(parse_json(text, "the quantization spec", error=SpecError))

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.layers)


def _only_values(name: str, values: dict[str, Any]) -> dict[str, Any]:
    for key, value in values.items():
        # The value of quantization_index may itself be a list. Other lists of one value are
        # accepted.
        if key != "quantization_index" and isinstance(value, (list, tuple)):
            if len(value) != 1:
                raise SpecError(
                    f"{key} has {len(value)} values for the one layer {name!r}: give one value, or "
                    "a list of names."
                )
            values = {**values, key: value[0]}
    return values


def _column(key: str, value: Any, names: list[str]) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        return [value] * len(names)
    if len(value) != len(names):
        raise SpecError(
            f"{key} must be one value or a list of {len(names)}, as name is. Received {len(value)} "
            "values."
        )
    return list(value)


def _entry(item: Any) -> LayerConfig:
    if isinstance(item, LayerConfig):
        return item
    if not isinstance(item, dict):
        raise SpecError(
            "An entry of a quantization spec is a mapping with at least 'name'. Received: "
            f"{item!r}."
        )
    known = {f.name for f in fields(LayerConfig)}
    unknown = sorted(set(map(str, item)) - known)
    if unknown or "name" not in item:
        problem = f"unknown key {unknown[0]!r}" if unknown else "no 'name'"
        raise SpecError(
            f"Entry {item!r} of the quantization spec has {problem}. Known keys: "
            f"{', '.join(sorted(known))}."
        )
    return LayerConfig(**item)
