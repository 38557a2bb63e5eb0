"""``qatline check`` and ``qatline run --dry-run``."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import time
from pathlib import Path

import typer

from qat_lib.errors import ConfigError
from qatline.components.support.credentials import scrub
from qatline.components.support.user_code import find_user_modules
from qatline.pipelines.cli.command import ConfigChoice
from qatline.pipelines.cli.options import print_json
from qatline.pipelines.cli.quiet_import import import_tensorflow
from qatline.pipelines.run.findings import Findings

_WIDTH = 80
_TITLES = 10  # columns


def check_command(
    choice: ConfigChoice, runs_dir: Path | None, *, as_json: bool, cache: bool = True
) -> None:
    """Check a config, show all mistakes, and end with the exit code 2 if there are any."""
    from qatline.pipelines.config.run_config import read_config

    started = time.monotonic()
    reading = read_config(
        choice.config, profiles=choice.profile or (), overrides=choice.set_ or (), runs_dir=runs_dir
    )
    # What user code prints must not mix with the result.
    with contextlib.redirect_stdout(sys.stderr):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        find_user_modules()
        with contextlib.suppress(ImportError):  # the check of packages reports it
            import_tensorflow()
        from qatline.pipelines.run.check import check_run

        findings = check_run(reading, store=cache)
    if as_json:
        print_json(_as_object(findings))
    else:
        sys.stdout.write("\n".join(_lines(findings, time.monotonic() - started)) + "\n")
    if findings.mistakes:
        raise typer.Exit(ConfigError.exit_code)


def _as_object(findings: Findings) -> dict[str, object]:
    return {
        "mistakes": [
            {"key": mistake.key, "message": scrub(mistake.text)} for mistake in findings.mistakes
        ],
        "not_checked": findings.unchecked,
        "notes": [scrub(note) for note in findings.notes],
        "summary": {title: scrub(text) for title, text in findings.facts.items()},
    }


def _lines(findings: Findings, seconds: float) -> list[str]:
    lines: list[str] = []
    for title, text in findings.facts.items():
        lines += _wrapped(scrub(text), f"{title:<{_TITLES}}", " " * _TITLES)
    if findings.notes:
        lines += ["", "Notes"]
        for note in findings.notes:
            lines += _wrapped(scrub(note), "  - ", "    ")
    if findings.unchecked:
        lines += ["", "Not checked"]
        names: dict[str, list[str]] = {}
        for name, reason in findings.unchecked.items():
            names.setdefault(reason, []).append(name)
        for reason, listed in names.items():
            lines += _wrapped(f"because of {reason}: {', '.join(listed)}", "  - ", "    ")
    count = len(findings.mistakes)
    lines.append("")
    for number, mistake in enumerate(findings.mistakes, start=1):
        lines += _wrapped(scrub(mistake.line), f"{number:>3}. ", "     ")
    said = "No mistakes" if not count else f"{count} mistake{'s' if count > 1 else ''}"
    return [*lines, f"{said}. Checked in {seconds:.1f} s."]


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return [
        line
        for index, part in enumerate(text.splitlines() or [""])
        for line in textwrap.wrap(
            part,
            _WIDTH,
            initial_indent=others if index else first,
            subsequent_indent=others,
            break_on_hyphens=False,
            break_long_words=False,
        )
        or [first.rstrip()]
    ]
