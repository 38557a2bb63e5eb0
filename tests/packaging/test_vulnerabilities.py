"""Known vulnerabilities of the locked packages.

Asks a service, so that it can fail without a change of the project.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.live
def test_no_locked_package_has_a_known_vulnerability(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    export = [
        "uv",
        "export",
        "--quiet",
        "--frozen",
        "--no-default-groups",
        "--all-extras",
        "--no-emit-project",
    ]
    subprocess.run(
        [*export, "--output-file", str(requirements)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    audit = [
        "uv",
        "run",
        "--no-sync",
        "--group",
        "audit",
        "pip-audit",
        "--strict",
        "--disable-pip",
        "--require-hashes",
    ]
    done = subprocess.run(
        [*audit, "-r", str(requirements)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
