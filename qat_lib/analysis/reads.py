"""How an operator reads a value: scaled INT8 or float."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from qat_lib.analysis.operators import FLOAT_ONLY
from qat_lib.analysis.rules.pair_types import OTHER_TYPES
from qat_lib.onnx_view.graph import Node


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The scale of a quantized tensor; equal when the bits are equal.

    Attributes:
        key: the bits of the scale, its axis and the quantized type.
        largest: the largest scale, for people.
        count: number of scales; 1 is per tensor.
        axis: axis of the scales when there are several.
        float_type: type of the scale, which is the type that the DQ gives.
        legal: whether the parser takes the node.
    """

    key: tuple[bytes, int | None, str]
    largest: float = field(compare=False)
    count: int = field(compare=False, default=1)
    axis: int | None = field(compare=False, default=None)
    float_type: str = field(compare=False, default="float32")
    legal: bool = field(compare=False, default=True)

    @property
    def is_int8(self) -> bool:
        """Whether the type is legal and 8-bit integer.

        FP8 and INT4 have other kernels.
        """
        return self.legal and self.key[2] not in OTHER_TYPES


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """One operator's view of one value.

    Attributes:
        node: the operator; None when the value is a graph output.
        position: input position of the operator, or index of the graph output.
        value: tensor that an operator, a graph input or an initializer gives.
        explicit: the scales written in the graph between the value and the operator, in order.
        scale: scale in which the operator sees the value after Q and DQ have moved; None is
            floating point.
        quantizers: names of the Q and DQ nodes on the way.
    """

    node: Node | None
    position: int
    value: str
    explicit: tuple[Scale, ...] = ()
    scale: Scale | None = None
    quantizers: tuple[str, ...] = ()

    @property
    def entry(self) -> Scale | None:
        """The scale in which the value leaves its producer.

        Differs from ``scale`` behind a requantization.
        """
        return self.explicit[0] if self.explicit else self.scale


def list_scales(scales: Iterable[Scale]) -> str:
    """Return scales as text, separated by commas."""
    return ", ".join(f"{scale.largest:.6g}" for scale in scales)


def ends_in_float(read: Read) -> bool:
    """Return whether a read is in floating point for any placement."""
    return read.node is None or read.node.op in FLOAT_ONLY


def float_reads(reads: Iterable[Read]) -> list[Read]:
    """Return the reads that see floating point."""
    return [read for read in reads if read.scale is None]
