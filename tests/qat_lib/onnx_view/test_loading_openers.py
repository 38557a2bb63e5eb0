"""Every function and command that opens ONNX files, on hostile files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_files import BROKEN, HOSTILE

# All tests read the results of one process that takes half a minute.
pytestmark = pytest.mark.matrix
READERS = {"analyze_onnx", "read_summary", "report", "analyze", "verify_onnx", "verify"}
#: The report draws what is written, cycles and all.
DRAWN = {"cycle", "two producers", "no producer"}
FAST = ("analyze_onnx", "build-engine")


def run(folder: Path, *openers: str) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("hostile_files.py")
    command = [sys.executable, str(script), str(folder), *openers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(cases: list[dict[str, Any]]) -> None:
    assert {case["file"] for case in cases} == {*BROKEN, *HOSTILE}
    for case in cases:
        where = f"{case['file']} with {case['opener']}: {case['message']}"
        assert case["seconds"] < 10, where
        assert case["peak_mib"] < 1024, where
        assert not case["left"], where
        if case["opener"] in READERS and case["file"] in HOSTILE:
            continue
        if case["opener"] == "report" and case["file"] in DRAWN:
            continue
        assert "Expected" in case["message"], where
        assert "Traceback" not in case["message"], where


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("hostile"), *FAST)


def test_every_opener_refuses_hostile_files(cases: list[dict[str, Any]]) -> None:
    check(cases)


@pytest.mark.slow
def test_every_opener_refuses_every_hostile_file(tmp_path: Path) -> None:
    check(run(tmp_path))


@pytest.mark.parametrize("name", [name for name in HOSTILE if name.startswith("scale")])
def test_unusable_scales_are_named(cases: list[dict[str, Any]], name: str) -> None:
    word = {"nan": "NaN"}.get(name.split()[1], name.split()[1])
    found = [c for c in cases if c["file"] == name and c["opener"] == "build-engine"]
    assert all(word in " ".join(case["message"].split()) for case in found)
    assert len(found) == 1
