"""Write examples/notebooks/*.ipynb from pages of the documentation.

Each block of Python or bash becomes a cell, so that the tests of the pages are those of the notebooks.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
import textwrap
from pathlib import Path

from tables import ROOT

PAGES = (
    "tutorials/own-model.md",
    "how-to/library.md",
    "how-to/extending.md",
    "how-to/pytorch.md",
    "how-to/detection.md",
)
FOLDER = ROOT / "examples" / "notebooks"
_BLOCK = re.compile(r"^( *)```(python|bash)\n(.*?)^\1```$", flags=re.MULTILINE | re.DOTALL)
_TAB = re.compile(r'^=== "(.*)"$\n((?:^(?: {4}.*)?$\n?)*)', flags=re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def target(page: str) -> Path:
    """Return the notebook of a page."""
    return FOLDER / f"{Path(page).stem}.ipynb"


def render(page: str) -> str:
    """Return the notebook of a page as JSON."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    text = _TAB.sub(lambda tab: f"**{tab[1]}**\n{textwrap.dedent(tab[2])}", text)
    cells, end = [], 0
    for block in _BLOCK.finditer(text):
        if block[3].startswith("pip "):  # the notebook's own installation remains text
            continue
        cells.append(("markdown", text[end : block.start()]))
        magic = "%%bash\nset -euo pipefail\n" if block[2] == "bash" else ""
        cells.append(("code", magic + textwrap.dedent(block[3])))
        end = block.end()
    cells.append(("markdown", text[end:]))
    content = {
        "cells": [
            _cell(number, kind, source.strip() if kind == "code" else _linked(source.strip(), page))
            for number, (kind, source) in enumerate(cells)
            if source.strip()
        ],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _linked(text: str, page: str) -> str:
    """Return text with links relative to the folder of the notebooks."""
    folder = posixpath.join("../../docs", posixpath.dirname(page))
    return _LINK.sub(lambda link: f"]({posixpath.normpath(posixpath.join(folder, link[1]))}", text)


def _cell(number: int, kind: str, source: str) -> dict[str, object]:
    cell: dict[str, object] = {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for each in PAGES:
        target(each).write_text(render(each), encoding="utf-8")
        sys.stdout.write(f"{target(each)}\n")
