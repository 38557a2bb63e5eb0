"""The one command that checks everything, and the hooks that check the same at each commit."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "run"


def test_the_script_can_be_run_and_stops_at_the_first_failure() -> None:
    assert os.access(SCRIPT, os.X_OK)
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert "set -euo pipefail" in SCRIPT.read_text()


def test_the_script_runs_the_test_command_of_the_readme() -> None:
    (command,) = re.findall(
        r"pip install uv && (uv run .*pytest)$",
        (ROOT / "README.md").read_text(),
        flags=re.MULTILINE,
    )
    assert command in SCRIPT.read_text()


def test_every_hook_is_a_check_of_the_script_too() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    for hook in repo["hooks"]:
        command = hook["entry"].removesuffix(" --force-exclude")
        assert command in SCRIPT.read_text(), hook["id"]


def test_modules_of_the_tests_have_names_of_their_own() -> None:
    """The folders of the tests are no packages: pytest refuses two modules of one name in a run of all."""
    names = Counter(
        path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"
    )
    assert [name for name, count in names.items() if count > 1] == []
