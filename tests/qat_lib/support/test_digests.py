"""The digest of a stream, against hashlib's of the same bytes."""

import hashlib
import io

import pytest

from qat_lib.support.digests import sha256_of


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_sha256_of_reads_the_whole_stream(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    stream = io.BytesIO(content[:size])
    assert sha256_of(stream) == hashlib.sha256(content[:size]).hexdigest()
    assert stream.tell() == size


def test_sha256_of_begins_where_the_stream_is() -> None:
    stream = io.BytesIO(b"header and content")
    stream.seek(7)
    assert sha256_of(stream) == hashlib.sha256(b"and content").hexdigest()
