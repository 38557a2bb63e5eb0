"""Human-readable numbers; a non-finite or missing number is a dash."""

from __future__ import annotations

import math

DASH = "–"
_MINUS = "−"


def finite(value: object) -> float | None:
    """Return ``value`` as a float if finite, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def percent(value: object, digits: int = 2) -> str:
    """Return a share as a percentage: 0.9722 -> ``97.22%``."""
    number = finite(value)
    return DASH if number is None else f"{number * 100:.{digits}f}%".replace("-", _MINUS)


def points(value: object) -> str:
    """Return a difference of two shares in signed percentage points.

    0.0028 -> ``+0.28 pp``.
    """
    number = finite(value)
    if number is None:
        return DASH
    rounded = round(number * 100, 2)
    return "±0.00 pp" if rounded == 0 else f"{rounded:+.2f} pp".replace("-", _MINUS)


def size(value: object) -> str:
    """Return bytes in a suitable unit: 186123 -> ``186 kB``."""
    number = finite(value)
    if number is None:
        return DASH
    for unit in ("B", "kB", "MB"):
        if number < 999.5:
            return f"{number:.3g} {unit}" if unit != "B" else f"{number:.0f} B"
        number /= 1000
    return f"{number:.3g} GB"


def milliseconds(value: object) -> str:
    """Return a latency in milliseconds with three digits, below 0.01 ms in microseconds."""
    number = finite(value)
    if number is None:
        return DASH
    return f"{number * 1000:.3g} µs" if 0 < number < 0.01 else f"{significant(number)} ms"


def rate(value: object) -> str:
    """Return images per second with a thin space between thousands."""
    number = finite(value)
    return DASH if number is None else f"{number:,.0f}".replace(",", "\u202f") + " /s"


def ratio(value: object) -> str:
    """Return a factor: 1.834 -> ``1.83 ×``."""
    number = finite(value)
    return DASH if number is None else f"{number:.2f} ×"


def significant(value: object, digits: int = 3) -> str:
    """Return a number with ``digits`` significant digits, without an exponent if possible."""
    number = finite(value)
    if number is None:
        return DASH
    if number == 0:
        return "0"
    # Through the exponent form, because rounding may carry: 0.9999 has three digits as 1.00, not as
    # 1.000.
    magnitude = int(f"{number:.{digits - 1}e}".partition("e")[2])
    if -4 <= magnitude < 6:
        return f"{number:.{max(digits - 1 - magnitude, 0)}f}".replace("-", _MINUS)
    return f"{number:.{digits - 1}e}".replace("-", _MINUS)


def seconds(value: object) -> str:
    """Return a readable duration: ``4.2 s``, ``1 min 35 s`` or ``2 h 5 min``."""
    number = finite(value)
    if number is None:
        return DASH
    if number < 59.95:
        return f"{number:.1f} s"
    if number < 3599.5:
        return "{} min {} s".format(*divmod(round(number), 60))
    return "{} h {} min".format(*divmod(round(number / 60), 60))
