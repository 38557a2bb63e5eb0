"""HTML pages of one style, and SVG elements; all texts and attributes are escaped.

A page is one file without external assets. Its template extends ``page.html.j2``, which brings the
style, the script and the macros.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

if TYPE_CHECKING:
    import jinja2

_TEMPLATES = Path(__file__).with_name("templates")


def render_page(template: Path, **values: Any) -> str:
    """Return the page of a template that extends ``page.html.j2``."""
    # Files of this package: the only text inserted without escaping.
    style, script = (
        Markup((_TEMPLATES / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js")
    )
    page = _environment(template.parent).get_template(template.name)
    return page.render(style=style, script=script, **values)


@cache
def _environment(folder: Path) -> jinja2.Environment:
    """Return the environment with its cache of compiled templates.

    Compiling takes as long as rendering. Jinja is imported here because it takes longer than all
    other imports of the library's core.
    """
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """Return one element.

    Args:
        tag: its name.
        children: markup is inserted unchanged; other values are escaped.
        attributes: ``class_`` gives ``class``, ``data_id`` gives ``data-id``; None omits an
            attribute. Floats are rounded to two decimals.
    """
    written = "".join(
        f' {_name(name)}="{escape(_text(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inner = "".join(escape(child) for child in children)
    # Tag and attribute names are literals of this package; the rest was escaped above.
    return Markup(f"<{tag}{written}>{inner}</{tag}>")


def text(x: float, y: float, content: object, **attributes: object) -> Markup:
    """Return an SVG text element at (x, y)."""
    return element("text", content, x=x, y=y, **attributes)


def picture(
    across: float,
    down: float,
    *children: object,
    label: str,
    role: str = "img",
    **attributes: object,
) -> Markup:
    """Return an ``across`` x ``down`` ``svg``; ``label`` is for screen readers."""
    return element(
        "svg",
        *children,
        viewbox=f"0 0 {_text(across)} {_text(down)}",
        role=role,
        aria_label=label,
        **attributes,
    )


def _name(keyword: str) -> str:
    # SVG's names are case-sensitive, and this one carries a capital.
    return "viewBox" if keyword == "viewbox" else keyword.rstrip("_").replace("_", "-")


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
