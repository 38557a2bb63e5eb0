"""Run a Markdown page's Python and bash blocks in order.

Usage: ``python run_page.py PAGE``; it runs them as a reader would. Python blocks share one
namespace. Bash blocks stop at the first failing command.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return (language, text) of each block that can be run."""
    return [(match[1], match[2]) for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


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
