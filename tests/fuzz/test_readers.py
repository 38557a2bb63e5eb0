"""A reader of any file returns or raises a QatlineError.

It does so in bounded time and memory. Damaged documents of every format: a few fixed ones in each
run of the tests, thousands of random ones with ``-m slow``.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers import Reader, all_readers

from qat_lib.errors import QatlineError

FEW, MANY = 25, 3000
READERS = all_readers()
MEMORY = 1 << 30  # bytes that a reader may allocate
PATIENCE = timedelta(seconds=30)  # for one file, on a busy machine

# NumPy and onnx warn of some damaged numbers; whether a reader warns is not the matter here.
pytestmark = pytest.mark.filterwarnings("ignore")


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Let an allocation beyond ``MEMORY`` fail."""
    if sys.platform != "linux":
        yield
        return
    status = Path("/proc/self/status").read_text()
    used = next(
        int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:")
    )
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_reader_takes_the_valid_file(reader: Reader, tmp_path: Path) -> None:
    """Else every damaged one would be refused for the same reason."""
    file = tmp_path / reader.file
    file.write_bytes(reader.valid)
    reader.read(file)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "examples", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_reader_refuses_a_damaged_file_in_words(
    reader: Reader, examples: int, tmp_path: Path
) -> None:
    file = tmp_path / reader.file

    @settings(
        max_examples=examples,
        derandomize=examples == FEW,
        deadline=PATIENCE,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def read(data: st.DataObject) -> None:
        file.write_bytes(data.draw(reader.files))
        with limited_memory(), contextlib.suppress(QatlineError):
            reader.read(file)

    read()
