"""Scales of quantized tensors, as fusion compares them."""

from qat_lib.analysis.flow import Scale


def test_scale_is_equal_when_its_bits_are() -> None:
    """What a scale is shown by, and the type that it is computed in, do not make it another scale."""
    key = (b"\0\0\0\x3f", None, "int8")
    assert Scale(key=key, largest=0.5) == Scale(key=key, largest=0.25, count=3, axis=1, float_type="float16")
    assert Scale(key=key, largest=0.5) != Scale(key=(b"\0\0\0\x40", None, "int8"), largest=0.5)
