"""Measure an ONNX file before it is parsed.

A protobuf of a few hundred megabytes can ask its parser for a hundred gigabytes: two bytes on disk
are an empty node in memory. This walk over the wire format reads field headers only, stops at the
first thing over a limit, and so bounds the time and memory that any file can cost.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from qat_lib.errors import ExportError

#: Message fields to step into, by the numbers in onnx.proto.
_DESCEND: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 8: "entry", 14: "entry", 25: "function"},
    "function": {7: "node", 9: "entry", 11: "attribute", 12: "value", 14: "entry"},
    "graph": {
        1: "node",
        5: "tensor",
        11: "value",
        12: "value",
        13: "value",
        15: "sparse tensor",
        16: "entry",
    },
    "node": {5: "attribute", 9: "entry"},
    "attribute": {
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        22: "sparse tensor",
        23: "sparse tensor",
    },
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry", 16: "entry"},
    "value": {2: "type", 4: "entry"},
    "type": {1: "tensor type"},
    "tensor type": {2: "shape"},
    "shape": {1: "entry"},
    "entry": {},
}
#: Fields of text; each costs little more than its length in memory.
_TEXT: Mapping[str, frozenset[int]] = {
    "model": frozenset({2, 3, 4, 6}),
    "function": frozenset({1, 4, 5, 6, 8, 10, 13}),
    "graph": frozenset({2, 10}),
    "node": frozenset({1, 2, 3, 4, 6, 7, 8}),
    "attribute": frozenset({1, 13, 21}),
    "tensor": frozenset({8, 12}),
    "value": frozenset({1, 3}),
    "type": frozenset({6}),
    "entry": frozenset({1, 2, 3}),
}
#: Fields of bytes and of numbers of fixed size, which take their length in memory.
_PAYLOAD: Mapping[str, frozenset[int]] = {
    "tensor": frozenset({4, 6, 9, 10}),
    "attribute": frozenset({4, 7, 9}),
}
#: Fields of packed integers: one byte can be eight in memory.
_INTEGERS: Mapping[str, frozenset[int]] = {
    "tensor": frozenset({1, 5, 7, 11}),
    "attribute": frozenset({8}),
}
_RAW_DATA = ("tensor", 9)

MAX_NODES = 200_000
MAX_FIELDS = 3_000_000
MAX_TEXT_BYTES = 64 * 2**20
MAX_PACKED_BYTES = 2**30
MAX_INTEGER_BYTES = 128 * 2**20
#: For messages that are not stepped into: 2 bytes of them can be 50 in memory.
MAX_OTHER_BYTES = 4 * 2**20
#: Graphs inside of graphs (branches of an If in a branch); networks nest 3 or 4. Engine builders
#: take time that grows exponentially with it.
MAX_NESTED_GRAPHS = 10


class WireError(ExportError, ValueError):
    """The bytes are no ONNX protobuf or exceed this module's limits."""


class _Frame(NamedTuple):
    position: int
    end: int
    kind: str
    graphs: int


def check_wire(data: bytes | mmap.mmap) -> None:
    """Walk the fields of a serialized ModelProto.

    Raises:
        WireError: the bytes are damaged, nested too deeply, or describe more than the limits allow.
    """
    budget = _Budget()
    stack = [_Frame(0, len(data), "model", 0)]
    while stack:
        frame = stack.pop()
        if frame.graphs > MAX_NESTED_GRAPHS:
            raise WireError(f"graphs are nested more than {MAX_NESTED_GRAPHS} deep")
        _check_message(data, frame, stack, budget)


def _check_message(
    data: bytes | mmap.mmap, frame: _Frame, stack: list[_Frame], budget: _Budget
) -> None:
    """Walk one message's fields and push its nested messages."""
    position, end, kind, graphs = frame
    descend = _DESCEND[kind]
    while position < end:
        budget.count_field()
        key, position = _varint(data, position, end)
        number, wire_type = key >> 3, key & 7
        if wire_type != 2:
            position = _skip(data, position, end, wire_type)
            continue
        length, position = _varint(data, position, end)
        if length > end - position:
            raise WireError(f"a field at byte {position} is cut off")
        inner = descend.get(number)
        if inner is None:
            budget.count_bytes(kind, number, length)
        else:
            if inner == "node":
                budget.count_node()
            if length:
                deeper = graphs + (inner == "graph")
                stack.append(_Frame(position, position + length, inner, deeper))
        position += length


class _Budget:
    """What a file has asked for so far."""

    def __init__(self) -> None:
        self._fields = 0
        self._nodes = 0
        self._bytes: Counter[str] = Counter()

    def count_field(self) -> None:
        self._fields += 1
        if self._fields > MAX_FIELDS:
            raise WireError(f"it has more than {MAX_FIELDS:,} fields")

    def count_node(self) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise WireError(f"it has more than {MAX_NODES:,} nodes")

    def count_bytes(self, kind: str, number: int, length: int) -> None:
        if (kind, number) == _RAW_DATA:
            return
        if number in _PAYLOAD.get(kind, ()):
            name, limit = "packed numbers", MAX_PACKED_BYTES
        elif number in _INTEGERS.get(kind, ()):
            name, limit = "packed integers", MAX_INTEGER_BYTES
        elif number in _TEXT.get(kind, ()):
            name, limit = "text", MAX_TEXT_BYTES
        else:
            name, limit = "other messages", MAX_OTHER_BYTES
        self._bytes[name] += length
        if self._bytes[name] > limit:
            raise WireError(f"it has more than {limit:,} bytes of {name}, more than a real graph")


def _varint(data: bytes | mmap.mmap, position: int, end: int) -> tuple[int, int]:
    if position < end and data[position] < 0x80:  # nearly all of them
        return data[position], position + 1
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise WireError("it ends in the middle of a field")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise WireError(f"a number at byte {position} is longer than 64 bits")


def _skip(data: bytes | mmap.mmap, position: int, end: int, wire_type: int) -> int:
    if wire_type == 0:
        return _varint(data, position, end)[1]
    size = {1: 8, 5: 4}.get(wire_type)
    if size is None or position + size > end:
        raise WireError(f"there is no valid field at byte {position}")
    return position + size
