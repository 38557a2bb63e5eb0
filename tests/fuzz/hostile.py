"""Hypothesis strategies for damaged files.

A file is a valid document with wrong values in it, or with wrong bytes.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]

_DEEP: Any = None
for _ in range(200):
    _DEEP = [_DEEP]

#: Values that a careless reader does not expect in a place.
VALUES = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            False,
            0,
            -1,
            2,
            2**31,
            2**63,
            -(2**70),
            1e308,
            -0.5,
            float("nan"),
            float("inf"),
            "",
            " ",
            "\0",
        ]
    ),
    st.sampled_from(
        [
            "../../etc/passwd",
            "/",
            "ä\U0001f600",
            "x" * 5000,
            "1e999",
            "[",
            "*a",
            [],
            {},
            [[]],
            {"": None},
        ]
    ),
    st.just(_DEEP),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        ),
        max_leaves=6,
    ),
)


@st.composite
def edited(draw: st.DrawFn, document: Any) -> Any:
    """Return a JSON document's copy with up to three damaged values.

    They are replaced, removed, doubled or renamed.
    """
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        paths = list(_paths(changed))
        if not paths:
            return copy.deepcopy(draw(VALUES))
        *parents, last = draw(st.sampled_from(paths))
        place = changed
        for key in parents:
            place = place[key]
        match draw(st.sampled_from(["replace", "replace", "remove", "double", "rename"])):
            case "replace":
                place[last] = copy.deepcopy(draw(VALUES))
            case "remove":
                del place[last]
            case "double" if isinstance(place, list):
                place.append(copy.deepcopy(place[last]))
            case _ if isinstance(place, dict):
                place[draw(st.text(max_size=5))] = place.pop(last)
    return changed


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Return bytes of which some are changed, lost or put in."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "cut", "lose", "insert", "repeat"])):
            case "flip" if start < len(data):
                data[start] ^= draw(st.integers(1, 255))
            case "cut":
                del data[start:]
            case "lose":
                del data[start : start + draw(st.integers(1, 64))]
            case "insert":
                data[start:start] = draw(st.binary(min_size=1, max_size=16))
            case "repeat":
                data[start:start] = data[start : start + draw(st.integers(1, 64))]
    return bytes(data)


def json_files(document: Any) -> st.SearchStrategy[bytes]:
    """Return files that are nearly the JSON of a document."""
    valid = json.dumps(document).encode()
    return (
        edited(document).map(lambda each: json.dumps(each).encode())
        | damaged(valid)
        | _NO_DOCUMENTS
    )


_NO_DOCUMENTS = st.binary(max_size=64) | st.sampled_from(
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"NaN",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b"[" * 100000,
        b'{"a":' * 100000,
        b"9" * 5000,
        b'"\\ud800"',
        b'{"a": 1, "a": 2}',
    ]
)


def _paths(document: Any, prefix: Path = (), depth: int = 12) -> Iterator[Path]:
    if depth == 0 or not isinstance(document, dict | list):
        return
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*prefix, key)
        yield from _paths(value, (*prefix, key), depth - 1)
