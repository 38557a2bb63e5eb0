"""Learned ranges as plain data, and the quantizers that have one."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from qat_lib.errors import ExportError
from qat_lib.export.ranges import LearnedRange, disabled_quantizers, learned_ranges
from qat_lib.keras.export.export import built_quantizers


@pytest.mark.parametrize(
    ("options", "dtype", "steps", "low", "high"),
    [
        ({}, np.int8, 127, -128, 127),
        ({"narrow": True}, np.int8, 127, -127, 127),
        ({"unsigned": True}, np.uint8, 255, 0, 255),
        ({"num_bits": 4}, np.int8, 7, -8, 7),
        ({"num_bits": 4, "narrow": True}, np.int8, 7, -7, 7),
        ({"num_bits": 2, "narrow": True}, np.int8, 1, -1, 1),
    ],
)
def test_learned_range_has_integers_of_its_type(options, dtype, steps, low, high):
    range_ = LearnedRange(name="q", amax=np.float32(steps), **options)
    assert range_.dtype == dtype
    assert range_.scale == np.float32(1)
    integers = range_.integers(np.float32([-500, 0.5, 1.5, 3, 500]))
    assert integers.tolist() == [low, 0, min(2, high), min(3, high), high]
    assert integers.dtype == dtype


@pytest.mark.parametrize("amax", [np.float32(1.27), np.float64([[2.54], [12.7]])])
def test_learned_range_scale_has_shape_of_amax(amax):
    scale = LearnedRange(name="q", amax=amax).scale
    assert scale.dtype == np.float32
    np.testing.assert_array_equal(scale, np.asarray(amax, np.float32) / np.float32(127))
    assert scale.shape == np.shape(amax)


def quantizer(name, *, build=True, enabled=True, amax=None, **options):
    from qat_lib.keras.quantizers import TensorQuantizer

    layer = TensorQuantizer(name=name, **options)
    if build:
        layer.build((None, 4))
        if amax is not None:
            layer.amax = amax
        if not enabled:
            layer.disable()
    return layer


def model(*layers):
    return built_quantizers(SimpleNamespace(_flatten_layers=lambda: layers))


def mixed():
    """Return what has no range, each in front of what has one."""
    return model(
        SimpleNamespace(name="dense", built=True, enabled=True),
        quantizer("b", amax=2.0, narrow_range=True),
        quantizer("unbuilt", build=False),
        quantizer("z_off", enabled=False),
        quantizer("a", amax=3.0, unsigned=True),
        quantizer("off", enabled=False),
    )


def test_learned_ranges_are_those_of_quantizers_that_are_on(caplog):
    found = learned_ranges(mixed())
    assert list(found) == ["b", "a"]
    assert [(r.name, float(r.amax), r.narrow, r.unsigned) for r in found.values()] == [
        ("b", 2.0, True, False),
        ("a", 3.0, False, True),
    ]
    assert caplog.records == []


def test_disabled_quantizers_are_those_that_are_off():
    assert disabled_quantizers(mixed()) == ["off", "z_off"]


@pytest.mark.parametrize("bits", [9, 16])
def test_learned_ranges_are_of_8_bits_at_most(bits):
    with pytest.raises(ExportError, match=f"8 bits or fewer. Received: 'q' with {bits}"):
        learned_ranges(model(quantizer("q", num_bits=bits)))


@pytest.mark.parametrize("bits", [2, 4, 7])
def test_learned_ranges_keep_their_width(bits):
    assert learned_ranges(model(quantizer("q", num_bits=bits)))["q"].num_bits == bits


def test_learned_ranges_of_a_quantizer_that_two_layers_share():
    shared = quantizer("q", amax=2.0)
    assert list(learned_ranges(model(shared, quantizer("r", amax=1.0), shared))) == ["q", "r"]


def test_learned_ranges_refuse_two_of_one_name():
    with pytest.raises(ExportError, match="two named 'q'"):
        learned_ranges(
            model(quantizer("q", amax=2.0), quantizer("r", amax=2.0), quantizer("q", amax=2.0))
        )


def test_learned_ranges_name_those_that_nothing_has_set(caplog):
    with caplog.at_level(logging.WARNING, logger="qat_lib"):
        learned_ranges(
            model(
                quantizer("a", amax=1.0), quantizer("b"), quantizer("c", amax=1.0), quantizer("d")
            )
        )
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "2 of 4 quantizers were never calibrated or trained, such as b:"
    )
