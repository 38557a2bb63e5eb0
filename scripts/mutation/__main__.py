"""Measure how many small changes of the library its tests notice.

    uv run --group test python -m scripts.mutation --sample 100 --seed 0
    uv run --group test python -m scripts.mutation qat_lib/analysis --minutes 30

Mutates copies in .mutation/tree, one process at a time; ends after --minutes, and goes on there
when started again. A survivor is tested again once its tests have changed. The mutants are met in a
seeded random order, so that the score of those done so far is that of a uniform sample.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from scripts.mutation.mutants import Mutant, draw, find_mutants
from scripts.mutation.report import Verdict, render, score
from scripts.mutation.session import Session
from scripts.mutation.table import find_tests, load_equivalents, load_tests

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".mutation"
TREE = FOLDER / "tree"  # a copy, so that files may be edited meanwhile
SCOPE = (
    "qat_lib/keras/calibration",
    "qat_lib/calibrators",
    "qat_lib/keras/quantizers",
    "qat_lib/analysis",
    "qat_lib/onnx_view",
    "components/runtime",
    "components/storage",
    "components/store",
    "components/tracking",
    "components/training",
    "qat_lib/export",
)
BASELINE_TIMEOUT = 900.0  # seconds


class Worker:
    """The process that runs tests on the copy of the tree."""

    def __init__(self, tree: Path, timeout: float) -> None:
        paths = {
            "PYTHONPATH": str(tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        self._log = tree.parent / "tests.log"
        self._process = subprocess.Popen(
            [sys.executable, "-u", str(tree / "scripts/mutation/worker.py")],
            cwd=tree,
            env={**os.environ, **paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._read()
        self._timeout = timeout
        self._sound: set[str] = set()

    def run(self, tests: list[str]) -> tuple[str, float]:
        """Return the outcome and the seconds of a mutant's tests."""
        outcome, seconds = self._ask(tests, self._timeout)
        if outcome == "survived":
            self._sound.update(tests)
        return outcome, seconds

    def check(self, tests: list[str]) -> None:
        """Run the test files not yet known to pass without a mutation.

        A mutant counts as killed only by tests that pass without it.

        Raises:
            SystemExit: one fails.
        """
        for file in tests:
            if file not in self._sound:
                outcome, _ = self._ask([file], BASELINE_TIMEOUT)
                if outcome != "survived":
                    raise SystemExit(
                        f"{outcome} without a mutation: {file}\n{self._log.read_text()[-3000:]}"
                    )
                self._sound.add(file)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, tests: list[str], timeout: float) -> tuple[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({"tests": tests, "timeout": timeout, "log": str(self._log)}) + "\n"
        )
        self._process.stdin.flush()
        answer = self._read()
        if answer["outcome"] == "error":
            raise SystemExit(
                f"pytest ended with {answer['code']}: {' '.join(tests)}\n{self._log.read_text()[-3000:]}"
            )
        return answer["outcome"], answer["seconds"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def copy_tree(target: Path) -> None:
    """Copy what Git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    shutil.rmtree(target, ignore_errors=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = ROOT / name
        if source.is_file() or source.is_symlink():  # "qatline" links to folders of the tree
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target / name, follow_symlinks=False)


def modules_in(paths: list[str]) -> list[str]:
    """Return the modules at paths: files, or folders with all below."""
    folders = [TREE / path for path in paths]
    found = [
        file for path in folders for file in ([path] if path.is_file() else path.rglob("*.py"))
    ]
    return sorted({str(file.relative_to(TREE)) for file in found})


def judge(mutants: list[Mutant], *, minutes: float, timeout: float) -> list[Verdict]:
    """Return the verdicts of those mutants that were met in time."""
    deadline = time.monotonic() + 60 * minutes
    session = Session(FOLDER / "results.jsonl", TREE)
    table = load_tests()
    known = {(each.module, each.before, each.after): each.reason for each in load_equivalents()}
    worker: Worker | None = None
    verdicts = []
    for mutant in mutants:
        source, tests = (
            (TREE / mutant.module).read_text(encoding="utf-8"),
            find_tests(mutant.module, table),
        )
        reason = known.get((mutant.module, *mutant.changed_lines(source)))
        result = None if reason is not None else session.find(mutant, tests)
        if reason is None and result is None:
            if time.monotonic() > deadline:
                break
            worker = worker or Worker(TREE, timeout)
            (TREE / mutant.module).write_text(mutant.apply(source), encoding="utf-8")
            try:
                outcome, seconds = worker.run(tests)
            finally:
                (TREE / mutant.module).write_text(source, encoding="utf-8")
            if outcome != "survived":
                worker.check(tests)
            result = session.add(mutant, tests, outcome, seconds)
            print(
                f"{result.outcome:<9}{result.seconds:7.1f} s  {mutant.module}:{mutant.line}",
                flush=True,
            )
        verdict = "equivalent" if result is None else result.outcome
        verdicts.append(
            Verdict(
                module=mutant.module, outcome=verdict, diff=mutant.diff(source), reason=reason or ""
            )
        )
    if worker is not None:
        worker.close()
    return verdicts


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if the score is below ``--least``."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="*", default=list(SCOPE), help="modules or folders of them")
    parser.add_argument("--sample", type=int, default=100, help="number of mutants (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default 0)")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="start no mutant after that long (default 60)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=240.0,
        help="seconds for the tests of a mutant (default 240)",
    )
    parser.add_argument(
        "--least", type=float, default=0.0, help="least score, in [0, 1] (default 0)"
    )
    options = parser.parse_args(arguments)
    copy_tree(TREE)
    mutants = draw(find_mutants(TREE, modules_in(options.paths)), seed=options.seed)
    verdicts = judge(mutants[: options.sample], minutes=options.minutes, timeout=options.timeout)
    print(f"\n{len(verdicts)} of {len(mutants)} mutants, seed {options.seed}\n\n{render(verdicts)}")
    return int(score(verdicts) < options.least)


if __name__ == "__main__":
    sys.exit(main())
