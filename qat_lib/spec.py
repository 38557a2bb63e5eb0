"""QuantizationSpec: what the user, or a custom Q/DQ case, asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from numbers import Integral
from pathlib import Path
from typing import Any, get_args

import yaml

from qat_lib.errors import SpecError
from qat_lib.options import CalibratorName, RangePolicy, WeightRangePolicy
from qat_lib.strict_yaml import parse_yaml, read_yaml
from qat_lib.text_files import parse_json

CALIBRATORS = get_args(CalibratorName)
RANGE_POLICIES = get_args(RangePolicy)
WEIGHT_RANGE_POLICIES = get_args(WeightRangePolicy)


ALL = "all"
"""What ``quantization_index`` says for every input, where None says nothing."""


@dataclass(repr=False)
class LayerConfig:
    """One entry of a :class:`QuantizationSpec`: which layers, and what of them is quantized.

    An attribute that is set later is checked as the constructor checks it.

    Attributes:
        name: a layer's name, a Keras class's name, or a regular expression for layer names.
        is_keras_class: whether ``name`` is a class, such as ``"Add"``; subclasses and Keras's
            aliases count.
        is_regex: whether ``name`` is a regular expression that must match the whole layer name.
        quantize_input: whether the layer's inputs are quantized.
        quantize_weight: whether its weights are (layers without weights ignore it).
        quantization_index: which inputs, of a layer with several; None or ``["all"]`` = all.
        num_bits: width of the integers, 2 to 16; None = 8. TensorRT and OpenVINO run 8.
        per_channel: whether weights get one range for each output channel; None = yes.
        calibrator: calibrator of the layer's inputs; None = the one given to ``calibrate``.
        range_policy: what training does to the ranges of the layer's inputs; None = the quantizer's
            default.
        weight_range_policy: what it does to those of its weights: ``"current"`` they are always the
            weights' own, ``"learned"`` they begin there and are trained, ``"frozen"`` they stay
            there; None = ``"current"``.
    """

    name: str
    is_keras_class: bool = False
    quantize_input: bool = True
    quantize_weight: bool = True
    quantization_index: Sequence[int | str] | None = None
    _: KW_ONLY
    is_regex: bool = False
    num_bits: int | None = None
    per_channel: bool | None = None
    calibrator: str | None = None
    range_policy: str | None = None
    weight_range_policy: str | None = None

    def __post_init__(self) -> None:
        """Check every value once."""
        if not isinstance(self.name, str) or not self.name:
            raise SpecError(
                f"A spec entry needs the name of a layer or class, as a string. Received: {self.name!r}."
            )
        for key in ("is_keras_class", "is_regex", "quantize_input", "quantize_weight"):
            if not isinstance(getattr(self, key), bool):
                raise SpecError(
                    f"{key} of {self.name!r} must be true or false. Received: {getattr(self, key)!r}."
                )
        if self.is_keras_class and self.is_regex:
            raise SpecError(
                f"{self.name!r} can't be a class and a regular expression at once: choose one."
            )
        self.__dict__["quantization_index"] = _index_tuple(self.name, self.quantization_index)
        if self.num_bits is not None and not (
            isinstance(self.num_bits, int) and 2 <= self.num_bits <= 16
        ):
            raise SpecError(
                f"num_bits of {self.name!r} must be an integer from 2 to 16. Received: {self.num_bits!r}."
            )
        if self.per_channel is not None and not isinstance(self.per_channel, bool):
            raise SpecError(
                f"per_channel of {self.name!r} must be true or false. Received: {self.per_channel!r}."
            )
        _check_choice(self.name, "calibrator", self.calibrator, CALIBRATORS)
        _check_choice(self.name, "range_policy", self.range_policy, RANGE_POLICIES)
        _check_choice(
            self.name, "weight_range_policy", self.weight_range_policy, WEIGHT_RANGE_POLICIES
        )
        if self.is_regex:
            try:
                re.compile(self.name)
            except re.error as error:
                raise SpecError(f"{self.name!r} is not a regular expression: {error}.") from error

    def __repr__(self) -> str:
        """Return the entry without what is at its default."""
        given = [f"{key}={value!r}" for key, value in self.to_dict().items()]
        return f"LayerConfig({', '.join(given)})"

    def __setattr__(self, key: str, value: Any) -> None:
        """Set an attribute to a checked value.

        Raises:
            SpecError: the value is wrong, and nothing is changed.
            AttributeError: an entry has no such attribute.
        """
        known = [f.name for f in fields(self)]
        if key not in known:
            raise AttributeError(f"Expected an attribute of {', '.join(known)}. Received: {key!r}.")
        is_complete = len(self.__dict__) == len(known)
        changed = (
            LayerConfig(**{**self.__dict__, key: value}).__dict__[key] if is_complete else value
        )
        self.__dict__[key] = changed

    @property
    def inputs(self) -> tuple[int, ...] | None:
        """Numbers of the inputs that are quantized, in order; None = all."""
        chosen = [i for i in self.quantization_index or () if isinstance(i, int)]
        return tuple(chosen) or None

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as plain data, without what is at its default."""
        plain = {
            key: value
            for key, value in asdict(self).items()
            if value != _DEFAULTS.get(key, object())
        }
        if "quantization_index" in plain:
            plain["quantization_index"] = list(plain["quantization_index"])
        return plain


_DEFAULTS = {f.name: f.default for f in fields(LayerConfig) if f.name != "name"}


def _index_tuple(name: str, value: Any) -> tuple[int | str, ...] | None:
    if value is None:
        return None
    if value == ALL or (isinstance(value, Sequence) and list(value) == [ALL]):
        return (ALL,)
    items = [value] if isinstance(value, Integral) and not isinstance(value, bool) else value
    is_list = isinstance(items, Sequence) and not isinstance(items, str)
    if not is_list or any(
        isinstance(i, bool) or not isinstance(i, Integral) or int(i) < 0 for i in items
    ):
        raise SpecError(
            f"quantization_index of {name!r} must be input numbers, counted from 0, or ['all']. Received: {value!r}."
        )
    return tuple(sorted({int(i) for i in items})) or None


def _check_choice(name: str, key: str, value: Any, choices: Sequence[str]) -> None:
    if value is not None and value not in choices:
        raise SpecError(
            f"{key} of {name!r} must be one of {', '.join(choices)}. Received: {value!r}."
        )


@dataclass
class QuantizationSpec:
    """Which layers are quantized differently from the default, and how.

    Example:
        >>> spec = QuantizationSpec()
        >>> spec = spec.add("conv2d_1", quantize_input=False).add("Add", is_keras_class=True)
        >>> [entry.name for entry in spec.add(r"block3_.*", is_regex=True).layers]
        ['conv2d_1', 'Add', 'block3_.*']

    A layer's own name wins over a regular expression, that over its class, and any of them over the
    default; among equals the last entry wins. With ``quantize_input`` and ``quantize_weight`` both
    False the layer is left alone.
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
    ) -> QuantizationSpec:
        """Add one entry, or several at once when ``name`` is a list.

        With a list of names, every other argument is one value for all of them or a list of equal
        length. For ``quantization_index`` that list holds one item (None, a number or a list of
        numbers) for each name.

        Returns:
            The spec itself, so that calls can be chained.

        Raises:
            SpecError: a value is wrong, or a list has another length than ``name``.
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
        }
        if not isinstance(name, (list, tuple)):
            single: Any = name
            self.layers.append(LayerConfig(name=single, **_only_values(single, values)))
            return self
        names = list(name)
        columns = {key: _column(key, value, names) for key, value in values.items()}
        # A list, not a generator: where one entry is wrong, none is added.
        self.layers.extend(
            [
                LayerConfig(name=n, **{key: column[i] for key, column in columns.items()})
                for i, n in enumerate(names)
            ]
        )
        return self

    def to_list(self) -> list[dict[str, Any]]:
        """Return the entries as plain data, ready for JSON or YAML."""
        return [entry.to_dict() for entry in self.layers]

    @classmethod
    def from_list(cls, entries: Iterable[Any]) -> QuantizationSpec:
        """Build a spec from what :meth:`to_list` gave.

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
            Path(path).write_text(text, encoding="utf-8")
        return text

    @classmethod
    def from_yaml(cls, source: str | Path) -> QuantizationSpec:
        """Read a spec from a YAML or JSON file, or from the text that :meth:`to_yaml` returned.

        Args:
            source: path of the file; a string of several lines is the text itself.

        Raises:
            SpecError: the file can't be read, is not YAML, or holds no list of entries.
        """
        if "\n" not in str(source):
            return cls.load(source)
        data = parse_yaml(str(source), "The quantization spec", error=SpecError)
        return cls.from_list(data if data is not None else [])

    def save(self, path: str | Path) -> None:
        """Write the spec to ``path``: JSON where the name ends in ``.json``, else YAML."""
        if Path(path).suffix == ".json":
            Path(path).write_text(self.to_json(), encoding="utf-8")
        else:
            self.to_yaml(path)

    @classmethod
    def load(cls, path: str | Path) -> QuantizationSpec:
        """Read a spec from the YAML or JSON file ``path``.

        Raises:
            SpecError: the file can't be read, is no YAML, or holds no list of entries.
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
            SpecError: the text is not JSON or holds no list of entries.
        """
        return cls.from_list(parse_json(text, "the quantization spec", error=SpecError))

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.layers)


def _only_values(name: str, values: dict[str, Any]) -> dict[str, Any]:
    for key, value in values.items():
        if key != "quantization_index" and isinstance(value, (list, tuple)):
            if len(value) != 1:
                raise SpecError(
                    f"{key} has {len(value)} values for the one layer {name!r}: give one value, or a list of names."
                )
            values = {**values, key: value[0]}
    return values


def _column(key: str, value: Any, names: list[str]) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        return [value] * len(names)
    if len(value) != len(names):
        raise SpecError(
            f"{key} must be one value or a list of {len(names)}, as name is. Received {len(value)} values."
        )
    return list(value)


def _entry(item: Any) -> LayerConfig:
    if isinstance(item, LayerConfig):
        return item
    if not isinstance(item, dict):
        raise SpecError(
            f"An entry of a quantization spec is a mapping with at least 'name'. Received: {item!r}."
        )
    known = {f.name for f in fields(LayerConfig)}
    unknown = sorted(set(map(str, item)) - known)
    if unknown or "name" not in item:
        problem = f"unknown key {unknown[0]!r}" if unknown else "no 'name'"
        raise SpecError(
            f"Entry {item!r} of the quantization spec has {problem}. Known keys: {', '.join(sorted(known))}."
        )
    return LayerConfig(**item)
