"""SHA-256 digests, in hexadecimal.

``hashlib.file_digest`` requires Python 3.11, but TensorRT 8.6 runs on Python 3.10.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import IO, Any

_BLOCK = 1 << 20


def sha256_of(stream: IO[bytes]) -> str:
    """Return the digest of a binary stream from its current position."""
    digest = hashlib.sha256()
    while block := stream.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the digest of a file's content."""
    with path.open("rb") as stream:
        return sha256_of(stream)


def sha256_of_json(value: Any) -> str:
    """Return the digest of JSON types, independent of the order of keys.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
