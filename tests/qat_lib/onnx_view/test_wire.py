"""ONNX file limits before parsing: each onnx.proto field's kind and limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import pytest

from qat_lib.onnx_view import wire
from qat_lib.onnx_view.wire import WireError, check_wire

LIMITS = ("MAX_TEXT_BYTES", "MAX_PACKED_BYTES", "MAX_INTEGER_BYTES", "MAX_OTHER_BYTES")
DOUBLE, FLOAT, STRING, BYTES = 1, 2, 9, 12  # types of a field in protobuf's descriptors
COUNTED = {
    DOUBLE: "packed numbers",
    FLOAT: "packed numbers",
    STRING: "text",
    BYTES: "packed numbers",
}
#: Fields whose messages are rare and small, by the message that has them: training, types of attributes, devices.
UNOPENED = {
    ("ModelProto", 20),
    ("ModelProto", 26),
    ("GraphProto", 14),
    ("NodeProto", 10),
    ("AttributeProto", 14),
    ("AttributeProto", 15),
    ("SparseTensorProto", 3),
    ("TensorProto", 3),
    *(("TypeProto", number) for number in (4, 5, 7, 8, 9)),
}


def varint(value: int) -> bytes:
    head = bytearray()
    while value > 0x7F:
        head.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*head, value])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def nested(path: tuple[int, ...], payload: bytes) -> bytes:
    for number in reversed(path):
        payload = field(number, payload)
    return payload


def fields(
    descriptor: Any, path: tuple[int, ...] = (), seen: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the path to each variable-length field, and its kind.

    Each message is there once on a path.
    """
    for each in descriptor.fields:
        way, inner = (*path, each.number), each.message_type
        if (descriptor.name, each.number) in UNOPENED:
            yield way, "other messages"
        elif (descriptor.name, each.number) == ("TensorProto", 9):
            yield way, ""  # raw data lie in memory as they lie in the file
        elif inner is not None and (descriptor.name, each.number, inner.name) not in seen:
            yield from fields(inner, way, (*seen, (descriptor.name, each.number, inner.name)))
        elif inner is None and (each.default_value == [] or each.type in (STRING, BYTES)):
            yield way, COUNTED.get(each.type, "packed integers")


def found(data: bytes) -> str:
    try:
        check_wire(data)
    except WireError as error:
        return str(error)
    return ""


def test_check_wire_counts_each_field_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIMITS:
        monkeypatch.setattr(wire, name, 64)
    wrong = {}
    for path, kind in fields(onnx.ModelProto.DESCRIPTOR):
        if len(path) > 7:
            continue
        expected = kind and f"it has more than 64 bytes of {kind}, more than a real graph"
        if found(nested(path, bytes(65))) != expected or found(nested(path, bytes(64))):
            wrong[path] = (kind, found(nested(path, bytes(65))))
    assert wrong == {}


def test_check_wire_sums_fields_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_TEXT_BYTES", 64)
    assert found(field(2, bytes(32)) + field(3, bytes(32))) == ""
    assert "64 bytes of text" in found(field(2, bytes(32)) + field(3, bytes(33)))


@pytest.mark.parametrize(("count", "refused"), [(3, False), (4, True)])
def test_check_wire_counts_nodes_and_fields(
    monkeypatch: pytest.MonkeyPatch, count: int, refused: bool
) -> None:
    nodes = field(7, field(1, b"") * count)
    monkeypatch.setattr(wire, "MAX_NODES", 3)
    assert ("more than 3 nodes" in found(nodes)) is refused
    monkeypatch.setattr(wire, "MAX_NODES", 100)
    monkeypatch.setattr(wire, "MAX_FIELDS", 4)  # the graph and its nodes
    assert ("more than 4 fields" in found(nodes)) is refused
    assert ("more than 4 fields" in found(b"\x08\x01" * (count + 1))) is refused


@pytest.mark.parametrize(("depth", "refused"), [(10, False), (11, True)])
def test_check_wire_counts_graphs_in_graphs(depth: int, refused: bool) -> None:
    """The model's graph, and those in node attributes.

    An attribute holds one, or a list of them.
    """
    for number in (6, 11):
        data = nested((7, *(1, 5, number) * (depth - 1)), field(10, b"text"))
        assert ("nested more than 10 deep" in found(data)) is refused


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", ""),
        (b"\x08\x7f", ""),
        (b"\x08\x80\x01", ""),
        (b"\x08" + b"\xff" * 9 + b"\x01", ""),
        (b"\x08" + b"\xff" * 10 + b"\x01", "byte 11 is longer than 64 bits"),
        (b"\x08", "in the middle"),
        (b"\x08\x80", "in the middle"),
        (b"\x80", "in the middle"),
        (b"\x09" + bytes(8), ""),
        (b"\x09" + bytes(8) + b"\x08\x01", ""),
        (b"\x0d" + bytes(4) + b"\x12\x01a", ""),
        (b"\x09" + bytes(7), "no valid field at byte 1"),
        (b"\x0d" + bytes(4), ""),
        (b"\x0d" + bytes(3), "no valid field at byte 1"),
        (b"\x0b" + bytes(8), "no valid field at byte 1"),
        (b"\x12\x03abc", ""),
        (b"\x12\x04abc", "byte 2 is cut off"),
        (b"\x12\x00", ""),
    ],
)
def test_check_wire_reads_the_wire_format(data: bytes, reason: str) -> None:
    assert (found(data) == "") is (reason == "")
    assert reason in found(data)


def test_limits_exceed_real_graphs_within_memory() -> None:
    assert (wire.MAX_NODES, wire.MAX_FIELDS, wire.MAX_NESTED_GRAPHS) == (200_000, 3_000_000, 10)
    sizes = [getattr(wire, name) / 2**20 for name in LIMITS]
    assert sizes == [64, 1024, 128, 4]
