"""remove_redundant_bounds: each condition."""

import numpy as np
import pytest

from qat_lib.export import passes

X = {"x": np.float32([[-900, -1, 0, 0.3, 1.27, 1.3, 2.54, 900]])}
CONSTANTS = {
    "s": np.float32(0.01),
    "s8": np.full(8, 0.01, np.float32),
    "z": np.int8(0),
    "z8": np.zeros(8, np.int8),
    "u": np.uint8(0),
    "low": np.float32(1.26),
    "top": np.float32(1.27),
    "least": np.float32(-1.28),
    "inner": np.float32(-1.27),
    "unsigned_low": np.float32(2.54),
    "unsigned_top": np.float32(2.55),
    "tops": np.float32([1.27, 9, 9, 9, 9, 9, 9, 9]),
    "mixed": np.float32([1.26, 9, 9, 9, 9, 9, 9, 9]),
    "rows": np.full((3, 1), 9, np.float32),
}


def pair(data, scale="s", zero="z"):
    return f"DequantizeLinear(QuantizeLinear({data}, {scale}, {zero}), {scale}, {zero})"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (pair("Min(x, top)"), pair("x")),
        (pair("Min(top, x)"), pair("x")),
        (pair("Min(x, tops)"), pair("x")),
        (pair("Min(Relu(x), tops)"), pair("Relu(x)")),
        (pair("Min(x, unsigned_top)", zero="u"), pair("x", zero="u")),
        (pair("Min(x, top)", zero="u"), None),
        (pair("Min(x, low)"), None),
        (pair("Clip(x, least, top)"), pair("x")),
        (pair("Clip(x, inner, top)"), None),
        (pair("Clip(x, least, low)"), None),
        (pair("Clip(x, least, unsigned_top)", zero="u"), pair("x", zero="u")),
        (pair("Clip(x, least, unsigned_low)", zero="u"), None),
        (pair("Clip(x, s, unsigned_top)", zero="u"), None),
        (pair("Min(x, unsigned_low)", zero="u"), None),
        (pair("Min(x, mixed)"), None),
        (pair("Min(x, Abs(top))"), None),
        (pair("Min(x, top, top)"), None),
        (pair("Min(x, rows)"), None),
        (pair("Max(x, top)"), None),
        (pair("Min(x, top)", "s8", "z8"), None),
        (pair("Min(x, top)", "Abs(s)"), None),
        (f"m = Min(x, top); {pair('m')}; Exp(m)", None),
        ("Exp(Min(x, top))", None),
    ],
)
def test_remove_redundant_bounds(lab, text, left):
    """And goes on behind what it leaves."""
    model = lab.formula(f"{text}; {pair('Min(Exp(x), tops)')}", X, **CONSTANTS)
    lowered = lab.check(model, passes.remove_redundant_bounds, X)
    expected = lab.results(model)[:-1] if left is None else [left]
    assert lab.results(lowered) == [*expected, pair("Exp(x)")]
