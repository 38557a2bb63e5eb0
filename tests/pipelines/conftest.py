"""Run the command line in processes with quick fake steps.

The real components stand around the fake steps.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FAKES = Path(__file__).parent / "fakes"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class FakeCli:
    """Starts ``qatline`` with the fake pipeline in ``folder``."""

    folder: Path

    def environment(self) -> dict[str, str]:
        unwanted = ("MLFLOW_", "QATLINE_", "COLUMNS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join((str(FAKES), str(ROOT))),
            "QATLINE_TRACKING": "off",
            "COLUMNS": "80",
        }

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(FAKES / "fake_cli.py"), *arguments],
            cwd=self.folder,
            env={**self.environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def executed(self) -> list[str]:
        """The names of the steps that were executed, not reused, in order."""
        log = self.runs / "calls.log"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    def only_run(self) -> Path:
        (record,) = self.runs.glob("*/run.json")
        return record.parent


@pytest.fixture
def fake_cli(tmp_path: Path) -> FakeCli:
    return FakeCli(tmp_path)


@pytest.fixture
def started(fake_cli: FakeCli) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start runs that are ended with the test, whatever happens to it."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: Any) -> subprocess.Popen[str]:
        processes.append(fake_cli.start(*arguments, **environment))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()
