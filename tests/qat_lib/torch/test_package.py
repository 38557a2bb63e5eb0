"""Import of ``qat_lib.torch`` next to TensorFlow and Triton, which crash in one order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("pass", "True"),  # Triton is imported before a later import of TensorFlow
        ("sys.modules['tensorflow'] = None", "False"),
        ("import triton; sys.modules['tensorflow'] = None", "True"),
    ],
)
def test_triton_is_never_imported_after_tensorflow(
    tmp_path: Path, first: str, expected: str
) -> None:
    (tmp_path / "triton.py").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {first}; import qat_lib.torch; "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(sys.modules.get('triton') is not None)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected
