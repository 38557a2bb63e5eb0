"""What a node tells of its inputs and attributes."""

from __future__ import annotations

import pytest

from qat_lib.onnx_view.graph import Node

NODE = Node(
    index=0,
    name="n",
    op="Any",
    inputs=("a", "", "c"),
    outputs=("d",),
    attributes={
        "one": 1,
        "half": 0.5,
        "list": [1, 2],
        "floats": [1, 0.5],
        "none": [],
        "text": b"edge",
        "bad": b"\xff",
    },
)


def test_node_input_is_empty_where_absent() -> None:
    assert [NODE.input(position) for position in range(5)] == ["a", "", "c", "", ""]


@pytest.mark.parametrize(
    ("name", "default", "expected"),
    [
        ("one", None, 1),
        ("one", 7, 1),
        ("half", 7, 7),
        ("half", None, None),
        ("absent", 7, 7),
        ("list", 7, 7),
    ],
)
def test_node_integer(name: str, default: int | None, expected: int | None) -> None:
    assert NODE.integer(name, default) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("list", (1, 2)), ("none", ()), ("floats", None), ("one", None), ("absent", None)],
)
def test_node_integers(name: str, expected: tuple[int, ...] | None) -> None:
    assert NODE.integers(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("text", "edge"), ("bad", "\ufffd"), ("one", "nearest"), ("absent", "nearest")],
)
def test_node_text(name: str, expected: str) -> None:
    assert NODE.text(name, "nearest") == expected
