"""Measure an ONNX file before it is parsed.

A protobuf of a few hundred megabytes can ask its parser for a hundred gigabytes: two bytes on disk are an empty
node in memory. This walk over the wire format reads field headers only, stops at the first thing over the limit,
and so bounds the time and memory that any file can cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

#: Message fields to step into (others are skipped by their length), by the numbers in onnx.proto.
_DESCEND: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
    "tensor": {},
}
#: Fields that hold numbers or bytes, which take at most eight times their length in memory.
_PAYLOAD: Mapping[str, frozenset[int]] = {
    "tensor": frozenset({1, 4, 5, 6, 7, 9, 10, 11}),
    "attribute": frozenset({4, 7, 8, 9}),
}

MAX_FIELDS = 3_000_000
MAX_STRUCTURE_BYTES = 64 * 2**20
MAX_PACKED_BYTES = 2**30
_MAX_DEPTH = 64
_RAW_DATA = ("tensor", 9)


class WireError(ValueError):
    """The bytes are no ONNX protobuf, or one that asks for more than the limits."""


class _Frame(NamedTuple):
    position: int
    end: int
    kind: str
    depth: int


def check_wire(data: bytes) -> None:
    """Walk the fields of a serialized ModelProto.

    Raises:
        WireError: the bytes are damaged, nested too deeply, or describe more than the limits of this module.
    """
    fields = structure = packed = 0
    stack = [_Frame(0, len(data), "model", 0)]
    while stack:
        position, end, kind, depth = stack.pop()
        if depth > _MAX_DEPTH:
            raise WireError(f"graphs are nested more than {_MAX_DEPTH} deep")
        descend, payload = _DESCEND[kind], _PAYLOAD.get(kind, frozenset())
        while position < end:
            fields += 1
            if fields > MAX_FIELDS:
                raise WireError(f"it has more than {MAX_FIELDS:,} fields")
            key, position = _varint(data, position, end)
            number, wire_type = key >> 3, key & 7
            if wire_type != 2:
                position = _skip(data, position, end, wire_type)
                continue
            length, position = _varint(data, position, end)
            if length > end - position:
                raise WireError(f"a field at byte {position} is cut off")
            if number in descend:
                stack.append(_Frame(position, position + length, descend[number], depth + 1))
            elif number in payload:
                packed += 0 if (kind, number) == _RAW_DATA else length
            else:
                structure += length
            position += length
            if structure > MAX_STRUCTURE_BYTES or packed > MAX_PACKED_BYTES:
                raise WireError("its structure takes more memory than any real graph")


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
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


def _skip(data: bytes, position: int, end: int, wire_type: int) -> int:
    if wire_type == 0:
        return _varint(data, position, end)[1]
    size = {1: 8, 5: 4}.get(wire_type)
    if size is None or position + size > end:
        raise WireError(f"there is no valid field at byte {position}")
    return position + size
