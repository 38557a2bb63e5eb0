"""Reads of values by operators, in scaled INT8 or floating point."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from qat_lib.analysis.operators import FLOAT_ONLY
from qat_lib.analysis.rules.pair_types import OTHER_TYPES
from qat_lib.onnx_view.graph import Node


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Scale of a quantized tensor; equality means equal bits.

    Attributes:
        key: bits of the scale, its axis and the quantized type.
        largest: the largest scale, for display.
        count: number of scales; 1 is per tensor.
        axis: per-channel axis; None per tensor.
        float_type: type of the scale, and so of the DQ's output.
        legal: whether TensorRT's parser accepts the node.
    """

    key: tuple[bytes, int | None, str]
    largest: float = field(compare=False)
    count: int = field(compare=False, default=1)
    axis: int | None = field(compare=False, default=None)
    float_type: str = field(compare=False, default="float32")
    legal: bool = field(compare=False, default=True)

    @property
    def is_int8(self) -> bool:
        """Whether the type is a legal 8-bit integer; FP8 and INT4 have other kernels."""
        return self.legal and self.key[2] not in OTHER_TYPES


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """One operator's view of one value.

    Attributes:
        node: the operator; None when the value is a graph output.
        position: input position of the operator, or index of the graph output.
        value: source tensor: an operator's output, a graph input or an initializer.
        explicit: scales of the Q/DQ nodes between the value and the operator, in order.
        scale: scale of the value at the operator after propagation of Q and DQ; None is floating
            point.
        quantizers: names of the Q and DQ nodes on the path.
    """

    node: Node | None
    position: int
    value: str
    explicit: tuple[Scale, ...] = ()
    scale: Scale | None = None
    quantizers: tuple[str, ...] = ()

    @property
    def entry(self) -> Scale | None:
        """The scale of the value at its producer, before any requantization."""
        return self.explicit[0] if self.explicit else self.scale


def list_scales(scales: Iterable[Scale]) -> str:
    """Return scales as text, separated by commas."""
    return ", ".join(f"{scale.largest:.6g}" for scale in scales)


def ends_in_float(read: Read) -> bool:
    """Return whether a read is in floating point in any placement."""
    return read.node is None or read.node.op in FLOAT_ONLY


def float_reads(reads: Iterable[Read]) -> list[Read]:
    """Return the reads in floating point."""
    return [read for read in reads if read.scale is None]
