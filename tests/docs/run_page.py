"""Run a Markdown page's Python and bash blocks in order, as a reader would.

``python run_page.py`` reads lines of a page's path, a tab and the path of an output file. It runs
each page in a fork and answers with its exit code. Python blocks of a page share one
namespace. Bash blocks stop at the first failing command.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Collection
from pathlib import Path

# Blocks in tabs are indented.
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", flags=re.MULTILINE | re.DOTALL)
_RUN = ("python", "bash")


def blocks(page: Path, languages: Collection[str] = _RUN) -> list[tuple[str, str]]:
    """Return (language, text) of each block in one of the languages, by default those that run."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [(each[2], textwrap.dedent(each[3])) for each in found if each[2] in languages]


def run(page: Path) -> None:
    """Run every block of ``page`` in the working directory."""
    sys.path.insert(0, str(Path.cwd()))  # as for a reader's own script
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, (language, text) in enumerate(blocks(page), start=1):
        sys.stdout.write(f"-- {page.name}, block {number}\n{text}")
        sys.stdout.flush()
        if language == "bash":
            subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=True)
        else:
            exec(compile(text, f"{page.name}, block {number}", "exec"), namespace)


def main() -> None:
    """Run pages in forks: TensorFlow is imported once, and computes nothing before a fork."""
    importlib.import_module("keras")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        page, output = line.rstrip("\n").split("\t")
        if (child := os.fork()) == 0:
            log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            code = 1
            try:
                run(Path(page))
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")


if __name__ == "__main__":
    main()
