"""Memory of training steps with quantizers, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.qat_lib.keras.quantizers import recomputation

ROOT = Path(__file__).parents[4]


def step_of(mode: str) -> tuple[float, float]:
    """Return by how many MiB the peak grew, and the norm of the gradients."""
    command = [sys.executable, "-m", recomputation.__name__, mode]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    grown, norm = done.stdout.split()
    return float(grown), float(norm)


@pytest.mark.slow
def test_recomputation_of_quantized_blocks_lowers_the_peak() -> None:
    kept, norm = step_of("kept")
    recomputed, same_norm = step_of("recomputed")
    assert same_norm == pytest.approx(norm, rel=1e-4)
    assert recomputed < 0.75 * kept
