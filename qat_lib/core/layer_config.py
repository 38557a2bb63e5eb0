"""LayerConfig: one entry of a quantization spec, validated on every assignment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields
from numbers import Integral
from typing import Any, get_args

from qat_lib.errors import SpecError
from qat_lib.options import CalibratorName, RangePolicy, WeightRangePolicy

CALIBRATORS = get_args(CalibratorName)
RANGE_POLICIES = get_args(RangePolicy)
WEIGHT_RANGE_POLICIES = get_args(WeightRangePolicy)


ALL = "all"
"""Explicit ``quantization_index`` for all inputs; None leaves it unspecified."""


@dataclass(repr=False)
class LayerConfig:
    """One entry of a ``QuantizationSpec``: a selection of layers and their quantization.

    Assignments to attributes are validated like constructor arguments.

    Attributes:
        name: a layer's name, a Keras class's name, or a regular expression for layer names.
        is_keras_class: whether ``name`` is a class, such as ``"Add"``; subclasses and Keras's
            aliases count.
        is_regex: whether ``name`` is a regular expression that must match the whole layer name.
        quantize_input: whether the layer's inputs are quantized.
        quantize_weight: whether the layer's weights are quantized (ignored without weights).
        quantization_index: numbers of the quantized inputs of a layer with several; None or
            ``["all"]`` = all.
        num_bits: width of the integers, 2 to 16; None = 8. TensorRT and OpenVINO run 8.
        weight_num_bits: width of the weights' integers, if different; None = ``num_bits``. TensorRT
            has no convolution with 4-bit weights.
        per_channel: whether weights get one range for each output channel; None = yes.
        calibrator: calibrator of the layer's inputs; None = the one given to ``calibrate``.
        range_policy: behaviour of the input ranges in training; None = the quantizer's default.
        weight_range_policy: behaviour of the weight ranges in training: ``"current"`` follow the
            weights, ``"learned"`` start at the weights' ranges and are trained, ``"frozen"`` remain
            at them; None = ``"current"``.
        reason: reason for the entry, shown in the plan.
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
    weight_num_bits: int | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Validate all values."""
        if not isinstance(self.name, str) or not self.name:
            raise SpecError(
                "A spec entry needs the name of a layer or class, as a string. Received: "
                f"{self.name!r}."
            )
        for key in ("is_keras_class", "is_regex", "quantize_input", "quantize_weight"):
            if not isinstance(getattr(self, key), bool):
                raise SpecError(
                    f"{key} of {self.name!r} must be true or false. Received: "
                    f"{getattr(self, key)!r}."
                )
        if self.is_keras_class and self.is_regex:
            raise SpecError(
                f"{self.name!r} can't be a class and a regular expression at once: choose one."
            )
        # Past __setattr__, which would validate a copy of this entry and recurse.
        self.__dict__["quantization_index"] = _index_tuple(self.name, self.quantization_index)
        _check_bits(self.name, "num_bits", self.num_bits)
        _check_bits(self.name, "weight_num_bits", self.weight_num_bits)
        if self.per_channel is not None and not isinstance(self.per_channel, bool):
            raise SpecError(
                f"per_channel of {self.name!r} must be true or false. Received: "
                f"{self.per_channel!r}."
            )
        _check_choice(self.name, "calibrator", self.calibrator, CALIBRATORS)
        _check_choice(self.name, "range_policy", self.range_policy, RANGE_POLICIES)
        _check_choice(
            self.name, "weight_range_policy", self.weight_range_policy, WEIGHT_RANGE_POLICIES
        )
        if not isinstance(self.reason, str):
            raise SpecError(f"reason of {self.name!r} must be text. Received: {self.reason!r}.")
        if self.is_regex:
            try:
                re.compile(self.name)
            except re.error as error:
                raise SpecError(f"{self.name!r} is not a regular expression: {error}.") from error

    def __repr__(self) -> str:
        """Return the entry without defaults."""
        given = [f"{key}={value!r}" for key, value in self.to_dict().items()]
        return f"LayerConfig({', '.join(given)})"

    def __setattr__(self, key: str, value: Any) -> None:
        """Set an attribute after validation.

        Raises:
            SpecError: the value is invalid; the entry is unchanged.
            AttributeError: an entry has no such attribute.
        """
        known = [f.name for f in fields(self)]
        if key not in known:
            raise AttributeError(f"Expected an attribute of {', '.join(known)}. Received: {key!r}.")
        # The generated __init__ assigns field by field: only a complete entry can be validated as a
        # whole.
        is_complete = len(self.__dict__) == len(known)
        changed = (
            LayerConfig(**{**self.__dict__, key: value}).__dict__[key] if is_complete else value
        )
        self.__dict__[key] = changed

    @property
    def inputs(self) -> tuple[int, ...] | None:
        """Numbers of the quantized inputs, in order; None = all."""
        chosen = [i for i in self.quantization_index or () if isinstance(i, int)]
        return tuple(chosen) or None

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as plain data, without defaults."""
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
    # Integral rather than int: NumPy integers are accepted, booleans are not.
    items = [value] if isinstance(value, Integral) and not isinstance(value, bool) else value
    is_list = isinstance(items, Sequence) and not isinstance(items, str)
    if not is_list or any(
        isinstance(i, bool) or not isinstance(i, Integral) or int(i) < 0 for i in items
    ):
        raise SpecError(
            f"quantization_index of {name!r} must be input numbers, counted from 0, or ['all']. "
            f"Received: {value!r}."
        )
    return tuple(sorted({int(i) for i in items})) or None


def _check_bits(name: str, key: str, value: Any) -> None:
    if value is not None and not (isinstance(value, int) and 2 <= value <= 16):
        raise SpecError(f"{key} of {name!r} must be an integer from 2 to 16. Received: {value!r}.")


def _check_choice(name: str, key: str, value: Any, choices: Sequence[str]) -> None:
    if value is not None and value not in choices:
        raise SpecError(
            f"{key} of {name!r} must be one of {', '.join(choices)}. Received: {value!r}."
        )
