"""``BuildSpec``, the options of an engine build, and its text forms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from qat_lib.errors import ConfigError
from qat_lib.options import Backend, BackendChoice, EnginePrecision, Hint
from qat_lib.support.mappings import map_values

Shape = tuple[int, ...]

BACKENDS: tuple[Backend, ...] = get_args(Backend)
_SCALAR = "scalar"
_UNITS = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}


@dataclass(frozen=True, kw_only=True)
class ShapeProfile:
    """Shapes of one input: smallest, optimum and largest.

    Args:
        minimum: smallest shape, all dimensions positive.
        optimum: shape for the selection of kernels; between the other two in every dimension.
        maximum: largest shape.

    Raises:
        ConfigError: the ranks differ, a dimension is not positive, or the three are not in order.
    """

    minimum: Shape
    optimum: Shape
    maximum: Shape

    def __post_init__(self) -> None:
        shapes = (self.minimum, self.optimum, self.maximum)
        # filter(None): the empty shape of a scalar has no minimum.
        least = min(map(min, filter(None, shapes)), default=1)
        if len(set(map(len, shapes))) != 1 or least < 1:
            raise ConfigError(
                "A shape profile needs three shapes of one rank with positive dimensions. "
                f"Received: {self}. Write it as 1x3x224x224,8x3x224x224,32x3x224x224."
            )
        if not self.contains(self.optimum):
            raise ConfigError(
                f"A shape profile goes from the smallest shape to the largest. Received: {self}."
            )

    @classmethod
    def fixed(cls, shape: Shape) -> ShapeProfile:
        """Return the profile of a single shape."""
        return cls(minimum=shape, optimum=shape, maximum=shape)

    def contains(self, shape: Sequence[int]) -> bool:
        """Return whether ``shape`` is between smallest and largest in every dimension."""
        if len(shape) != len(self.minimum):
            return False
        sizes = zip(self.minimum, shape, self.maximum, strict=True)
        return all(low <= size <= high for low, size, high in sizes)

    @property
    def bounded(self) -> tuple[int | None, ...]:
        """The fixed dimensions, with None for open ones."""
        pairs = zip(self.minimum, self.maximum, strict=True)
        return tuple(low if low == high else None for low, high in pairs)

    @property
    def is_fixed(self) -> bool:
        """Whether only one shape is allowed."""
        return self.minimum == self.maximum

    def __str__(self) -> str:
        if not self.optimum:
            return _SCALAR
        return ",".join(map(_shape_text, (self.minimum, self.optimum, self.maximum)))


def _shape_text(shape: Shape) -> str:
    return "x".join(map(str, shape))


@dataclass(frozen=True, kw_only=True)
class BuildSpec:
    """Options of an engine build.

    Every field has a default, so ``BuildSpec()`` builds for this machine.

    Args:
        backend: ``auto`` selects TensorRT if the library and a GPU exist, else OpenVINO, else ONNX
            Runtime.
        shapes: profile of each input by name. Inputs without a profile keep their fixed shape; a
            dynamic batch becomes 1 to ``max_batch_size``.
        max_batch_size: largest batch of inputs without a profile.
        float_precision: precision of layers outside of INT8. ``fp16`` and ``bf16`` require support
            by backend and device; TensorRT 10.12 and newer read the types from the ONNX graph and
            accept only ``fp32`` here.
        threads: CPU threads; 0 = all.
        hint: whether the CPU backends optimize single requests (``latency``) or many concurrent
            ones (``throughput``).
        workspace_mib: limit of TensorRT's scratch memory in MiB; None = the device's memory.
        optimization_level: 0 (quick build) to 5 (slow build, fastest engine). ONNX Runtime: 0 off,
            1 basic, 2 extended, 3 and more all graph optimizations.
        timing_cache: TensorRT's kernel timings, read before and updated after the build.
        profile: whether to measure each layer after the build and write the times.
        hardware_compatible: TensorRT: build for Ampere and all newer GPUs instead of this GPU only.
        version_compatible: TensorRT: build for later versions of the same major version, too.
        properties: OpenVINO: compilation properties of the CPU plugin, such as
            ``{"SNIPPETS_MODE": "ENABLE"}``; they override those of the backend. The manifest lists
            the used properties.
        preprocessing: preprocessing of raw input, stored in the manifest.
        classes: class names in label order, stored in the manifest.

    Raises:
        ConfigError: a value is out of range, or the backend does not support properties.
    """

    backend: BackendChoice = "auto"
    shapes: Mapping[str, ShapeProfile] = field(default_factory=dict)
    max_batch_size: int = 32
    float_precision: EnginePrecision = "fp32"
    threads: int = 0
    hint: Hint = "latency"
    workspace_mib: int | None = None
    optimization_level: int = 3
    timing_cache: Path | None = None
    profile: bool = False
    hardware_compatible: bool = False
    version_compatible: bool = False
    properties: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] | None = None
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.backend not in ("auto", *BACKENDS):
            raise ConfigError(
                f"backend is one of auto, {', '.join(BACKENDS)}. Received: {self.backend!r}."
            )
        if not 0 <= self.optimization_level <= 5:
            raise ConfigError(f"optimization_level is 0 to 5. Received: {self.optimization_level}.")
        if self.threads < 0:
            raise ConfigError(f"threads is 0 (all) or a positive number. Received: {self.threads}.")
        if self.max_batch_size < 1:
            raise ConfigError(f"max_batch_size is at least 1. Received: {self.max_batch_size}.")
        if self.workspace_mib is not None and self.workspace_mib < 1:
            raise ConfigError(f"workspace_mib is at least 1. Received: {self.workspace_mib}.")
        if self.float_precision not in ("fp32", "fp16", "bf16"):
            raise ConfigError(
                f"float_precision is fp32, fp16 or bf16. Received: {self.float_precision!r}."
            )
        if self.hint not in ("latency", "throughput"):
            raise ConfigError(f"hint is latency or throughput. Received: {self.hint!r}.")
        if self.properties and self.backend not in ("auto", "openvino"):
            raise ConfigError(
                f"properties are OpenVINO's; {self.backend} has none. Received: "
                f"{dict(self.properties)}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON types, for the manifest."""
        values = asdict(self)
        values["shapes"] = map_values(str, self.shapes)
        values["timing_cache"] = None if self.timing_cache is None else str(self.timing_cache)
        values["classes"] = list(self.classes)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BuildSpec:
        """Return the spec of a dict from ``to_dict``."""
        known = dict(values)
        known["shapes"] = map_values(parse_profile, known.get("shapes", {}))
        known["classes"] = tuple(known.get("classes", ()))
        if known.get("timing_cache"):
            known["timing_cache"] = Path(known["timing_cache"])
        return cls(**known)


def parse_shapes(text: str) -> dict[str, ShapeProfile]:
    """Parse ``input:1x3x224x224,8x...,32x...``.

    Each input has one shape, or smallest, optimum and largest. A final ``...`` repeats the
    remaining dimensions of the first shape. Inputs are separated by ``;``.

    >>> str(parse_shapes("input:1x3x8x8,4x...,8x...")["input"])
    '1x3x8x8,4x3x8x8,8x3x8x8'

    Raises:
        ConfigError: the text does not have this form.
    """
    profiles = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        # The last colon: names such as "serving:0" contain colons themselves.
        name, colon, shapes = part.rpartition(":")
        if not colon or not name:
            raise ConfigError(
                f"Shapes are written as name:1x3x224x224,8x...,32x.... Received: {part!r}."
            )
        profiles[name] = parse_profile(shapes)
    return profiles


def parse_profile(text: str) -> ShapeProfile:
    """Parse one shape, or three comma-separated shapes, into a profile; a number is ``scalar``."""
    if text.strip() == _SCALAR:
        return ShapeProfile.fixed(())
    pieces = list(map(str.strip, text.split(",")))
    if len(pieces) not in (1, 3):
        raise ConfigError(
            f"A profile is one shape, or smallest,optimum,largest. Received: {text!r}."
        )
    first = _parse_shape(pieces[0], ())
    rest = [_parse_shape(piece, first) for piece in pieces[1:]] or [first, first]
    return ShapeProfile(minimum=first, optimum=rest[0], maximum=rest[1])


def _parse_shape(text: str, first: Shape) -> Shape:
    match = re.fullmatch(r"(\d+(?:x\d+)*)(x\.\.\.)?", text)
    if match is None or (match[2] and not first):
        raise ConfigError(
            "A shape is written as 1x3x224x224 (x... repeats the first one's rest). Received: "
            f"{text!r}."
        )
    sizes = tuple(map(int, match[1].split("x")))
    return sizes + first[len(sizes) :] if match[2] else sizes


def parse_properties(texts: Sequence[str]) -> dict[str, str]:
    """Parse ``NAME=VALUE`` texts; OpenVINO converts the values itself.

    Raises:
        ConfigError: a text has another form.
    """
    properties = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise ConfigError(
                "A property is written as NAME=VALUE, such as SNIPPETS_MODE=ENABLE. "
                f"Received: {text!r}."
            )
        properties[name.strip()] = value.strip()
    return properties


def parse_size(text: str) -> int:
    """Parse a memory size such as ``4GiB``, ``512MiB`` or ``1000000`` into bytes.

    >>> parse_size("4GiB")
    4294967296

    Raises:
        ConfigError: the text is not a number with a known unit.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(
            f"A size is a number with KiB, MiB, GiB, KB, MB or GB. Received: {text!r}."
        )
    return int(float(match[1]) * _UNITS[match[2].lower()])
