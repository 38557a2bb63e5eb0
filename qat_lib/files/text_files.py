"""Read the text files of users: configs, specs, plans."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from qat_lib.errors import QatlineError
from qat_lib.files.regular_files import read_regular

MIB = 1 << 20

JSON_BYTES = 16 * MIB
"""Largest JSON file: parsed, it takes up to 30 times its size."""


def read_text(
    path: str | Path, *, what: str, error: type[QatlineError], limit: int = 64 * MIB
) -> str:
    """Read a regular UTF-8 text file without its byte order mark.

    Args:
        path: the file.
        what: expected content with its article, for messages.
        error: class of the raised exception.
        limit: largest size of the file, in bytes.

    Raises:
        QatlineError: as ``error``: the file is missing, not regular, too large, unreadable or
            not UTF-8.
    """
    try:
        content = read_regular(path, limit)
    except FileNotFoundError as missing:
        raise error(f"Expected {what} at {path}; there is none. Check the path.") from missing
    except (OSError, ValueError) as problem:
        raise error(
            f"Could not read {what} {path}: {getattr(problem, 'strerror', None) or problem}."
        ) from problem
    try:
        # Editors on Windows write a byte order mark, which json and yaml reject.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(
            f"Expected {what} in UTF-8 at {path}, received the byte 0x{content[problem.start]:02x} "
            "at position "
            f"{problem.start}. Save the file as UTF-8."
        ) from problem


def parse_json(text: str, source: str, *, error: type[QatlineError], unique: bool = True) -> Any:
    """Parse JSON.

    Args:
        text: the document.
        source: name of the document in messages, such as the path of a file.
        error: class of the raised exception.
        unique: whether a repeated key is an error; otherwise the last value counts.

    Raises:
        QatlineError: as ``error``: the text is not JSON, is nested too deeply, or repeats a key.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique if unique else None)
    except RecursionError as problem:
        raise error(f"{source}: received JSON that is nested too deeply.") from problem
    except ValueError as problem:
        raise error(f"{source}: received no valid JSON: {problem}.") from problem


def read_json(
    path: str | Path,
    *,
    what: str,
    error: type[QatlineError],
    limit: int = JSON_BYTES,
    unique: bool = True,
) -> Any:
    """Read a JSON file; see ``read_text`` and ``parse_json``."""
    text = read_text(path, what=what, error=error, limit=limit)
    return parse_json(text, f"Expected {what} at {path}", error=error, unique=unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice[:100]!r} is given twice")
    return content
