"""SHA-256 digests of files.

``hashlib.file_digest`` requires Python 3.11, but TensorRT 8.6 runs on Python 3.10.
"""

from __future__ import annotations

import hashlib
from typing import IO

_BLOCK = 1 << 20


def sha256_of(stream: IO[bytes]) -> str:
    """Return the SHA-256 hex digest of a binary stream from its current position."""
    digest = hashlib.sha256()
    while block := stream.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest()
