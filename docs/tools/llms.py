"""Write docs/llms.txt: title, address and first sentence of each page, by section of the navigation.

The format is that of https://llmstxt.org.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import yaml
from tables import ROOT

TARGET = ROOT / "docs" / "llms.txt"
_NO_PROSE = ("#", "!", "|", "```", "- ", "<")


def render() -> str:
    """Return the file."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    lines = [f"# {settings['site_name']}", "", f"> {settings['site_description']}"]
    loose = []
    for entry in settings["nav"]:
        ((title, content),) = entry.items()
        if isinstance(content, str):
            loose.append(_line(title, content))
        else:
            lines += ["", f"## {title}", "", *_lines(content)]
    return "\n".join([*lines, "", "## Other pages", "", *loose]) + "\n"


def _lines(entries: list[dict[str, Any]]) -> list[str]:
    return [_line(title, path) for entry in entries for title, path in entry.items()]


def _line(title: str, path: str) -> str:
    text = (ROOT / "docs" / path).read_text(encoding="utf-8")
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    paragraphs = (part.strip() for part in text.split("\n\n"))
    first = next(part for part in paragraphs if part and not part.startswith(_NO_PROSE))
    first = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    sentence = re.match(r".*?[.:](?= |$)", first)
    return f"- [{title}]({path}): {(sentence[0] if sentence else first).rstrip('.:')}."


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")
