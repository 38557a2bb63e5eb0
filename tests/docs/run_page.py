"""Run a Markdown page's Python and bash blocks in order.

Usage: ``python run_page.py PAGE``; it runs them as a reader would. Python blocks share one
namespace. Bash blocks stop at the first failing command.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Collection
from pathlib import Path

# Blocks in tabs are indented.
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", flags=re.MULTILINE | re.DOTALL)
_RUN = ("python", "bash")


def blocks(page: Path, languages: Collection[str] = _RUN) -> list[tuple[str, str]]:
    """Return (language, text) of each block in one of the languages, by default those that run."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [(each[2], textwrap.dedent(each[3])) for each in found if each[2] in languages]


def main(page: Path) -> None:
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
