"""SVG elements as strings; all texts and attributes are escaped."""

from __future__ import annotations

from markupsafe import Markup, escape


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
    """Return a text element at (x, y)."""
    return element("text", content, x=x, y=y, **attributes)


def picture(
    across: float, down: float, *children: object, label: str, **attributes: object
) -> Markup:
    """Return an ``across`` x ``down`` ``svg``; ``label`` is for screen readers."""
    return element(
        "svg",
        *children,
        viewbox=f"0 0 {_text(across)} {_text(down)}",
        role="img",
        aria_label=label,
        **attributes,
    )


def _name(keyword: str) -> str:
    # SVG's names are case-sensitive, and this one carries a capital.
    return "viewBox" if keyword == "viewbox" else keyword.rstrip("_").replace("_", "-")


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
