"""The check-everything script and the commit hooks with equal checks."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

import tomllib
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "run"


def test_check_script_is_executable_and_stops_on_failure() -> None:
    assert os.access(SCRIPT, os.X_OK)
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert "set -euo pipefail" in SCRIPT.read_text()


def test_script_runs_test_command_of_readme() -> None:
    (command,) = re.findall(
        r"pip install uv && (uv run .*pytest)$",
        (ROOT / "README.md").read_text(),
        flags=re.MULTILINE,
    )
    assert command in SCRIPT.read_text()


def test_every_hook_is_a_script_check() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    for hook in repo["hooks"]:
        command = hook["entry"].removesuffix(" --force-exclude")
        assert command in SCRIPT.read_text(), hook["id"]


def helper_folders() -> list[Path]:
    """The folders of the tests from which helpers are imported."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return [ROOT / folder for folder in options["pythonpath"]]


def test_helpers_have_unique_names() -> None:
    """Helpers are found by path: equal names would hide the second."""
    names = Counter(
        path.name
        for folder in helper_folders()
        for path in folder.glob("*.py")
        if not path.name.startswith(("test_", "conftest"))
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_folder_of_the_tests_hides_a_package() -> None:
    """A folder named tensorrt on the path would be imported as TensorRT."""
    packages = {*packages_distributions(), "tensorrt", "cuda"}
    found = [path.name for folder in helper_folders() for path in folder.iterdir() if path.is_dir()]
    assert packages.isdisjoint(found)
