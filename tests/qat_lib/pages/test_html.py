"""The style of all pages, and SVG elements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markupsafe import Markup

from qat_lib.pages import html
from qat_lib.pages.html import render_page

STYLE = (Path(html.__file__).parent / "templates" / "page.css").read_text()


def test_element_escapes_text_and_attributes() -> None:
    drawn = html.element("text", "<b>", data_x='"><script>', width=1.5)
    assert drawn == Markup('<text data-x="&#34;&gt;&lt;script&gt;" width="1.5">&lt;b&gt;</text>')


def test_render_page_escapes_values(tmp_path: Path) -> None:
    page = tmp_path / "own.html.j2"
    page.write_text(
        '{% extends "page.html.j2" %}{% set sections = ["Part"] %}'
        '{% block main %}<p id="part">{{ value }}</p>{% endblock %}'
    )
    text = render_page(page, value="</style><script>")
    assert '<p id="part">&lt;/style&gt;&lt;script&gt;</p>' in text
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\(", text)


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours by WCAG 2."""
    bright, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_enough_contrast() -> None:
    colours = {
        name: themes
        for name, *themes in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", STYLE)
    }
    grounds = ("bg", "card", "soft")
    pairs = [(text, ground) for text in ("ink", "muted", "accent") for ground in grounds]
    pairs += [(text, ground) for text in ("int8", "bad", "float") for ground in grounds]
    pairs += [(tone, f"{tone}-soft") for tone in ("int8", "float", "bad")]
    pairs += [(text, f"{tone}-soft") for text in ("ink", "muted") for tone in ("int8", "float")]
    for text, ground in pairs:
        for theme in (0, 1):
            assert contrast(colours[text][theme], colours[ground][theme]) >= 4.5, (text, ground)


@pytest.mark.parametrize(("cell", "tone", "largest"), [("hit", "int8", 48), ("miss", "bad", 50)])
def test_numbers_in_full_confusion_cells_have_contrast(cell: str, tone: str, largest: int) -> None:
    (rule,) = re.findall(rf"td\.{cell} {{ background: (.*?);", STYLE)
    shown = {"hit": "calc(10% + var(--share) * 38%)", "miss": "min(50%, 16% + var(--share) * 300%)"}
    assert shown[cell] in rule, "compute the largest share of the tone anew"
    colours = {
        name: themes
        for name, *themes in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", STYLE)
    }
    for theme in (0, 1):
        ink, card, strong = (colours[name][theme] for name in ("ink", "card", tone))
        parts = [
            round(
                (largest * int(strong[k : k + 2], 16) + (100 - largest) * int(card[k : k + 2], 16))
                / 100
            )
            for k in (1, 3, 5)
        ]
        assert contrast(ink, "#" + "".join(f"{part:02x}" for part in parts)) >= 4.5
