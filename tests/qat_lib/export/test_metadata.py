"""Metadata of an exported file, also read back from damaged files."""

import json

import numpy as np
import pytest

from qat_lib.errors import ExportError
from qat_lib.export.metadata import (
    Recorded,
    RecordedWeight,
    integer_digest,
    pack,
    unpack,
)


def record() -> Recorded:
    weight = RecordedWeight(
        quantizer="k",
        scale=np.float32([0.5, 2.0]),
        factor=np.float32([1.0, -1.0]),
        digest="0" * 64,
        axis=1,
    )
    return Recorded(
        activations={"x": 0.25},
        weights={"k/DequantizeLinear": weight},
        disabled=("off",),
        half=True,
        readers={"x/DequantizeLinear": ("conv:0", "y:")},
        unsigned=("x/DequantizeLinear",),
    )


def test_recorded_round_trips() -> None:
    again = Recorded.from_json(record().to_json())
    assert again.to_json() == record().to_json()
    assert (again.disabled, again.half, again.unsigned) == (("off",), True, ("x/DequantizeLinear",))
    assert again.readers == {"x/DequantizeLinear": ("conv:0", "y:")}
    np.testing.assert_array_equal(again.weights["k/DequantizeLinear"].scale, [0.5, 2.0])


@pytest.mark.parametrize("key", ["readers", "unsigned", "disabled", "half"])
def test_recorded_reads_an_older_record(key: str) -> None:
    """Without the key, which says less; not wrong."""
    data = {k: v for k, v in json.loads(record().to_json()).items() if k != key}
    assert getattr(Recorded.from_json(json.dumps(data)), key) == getattr(Recorded(), key)


def test_recorded_says_its_version() -> None:
    assert json.loads(record().to_json())["version"] == 1


def test_recorded_takes_the_last_of_two_entries() -> None:
    text = '{"activations": {"x": 1}, "activations": {"x": 2}, "weights": {}}'
    assert Recorded.from_json(text).activations == {"x": 2.0}


def test_recorded_keeps_names_only() -> None:
    data = {**json.loads(record().to_json()), "disabled": [["a"]], "readers": {"n": [3, None]}}
    assert Recorded.from_json(json.dumps(data)).disabled == ("['a']",)
    assert Recorded.from_json(json.dumps(data)).readers == {"n": ("3", "None")}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "[" * 50_000,
        '{"activations": 3}',
        '{"activations": {"x": "y"}, "weights": {}}',
    ],
)
def test_recorded_refuses_what_is_no_record(text: str) -> None:
    with pytest.raises(ExportError, match=r"qatline\.quantizers"):
        Recorded.from_json(text)


def test_recorded_reads_a_weight_without_factor_and_axis() -> None:
    data = json.loads(record().to_json())
    data["weights"]["k/DequantizeLinear"] |= {"factor": None, "axis": 0}
    weight = Recorded.from_json(json.dumps(data)).weights["k/DequantizeLinear"]
    assert (weight.factor, weight.axis) == (None, 0)
    del data["weights"]["k/DequantizeLinear"]["axis"]
    assert Recorded.from_json(json.dumps(data)).weights["k/DequantizeLinear"].axis is None
    np.testing.assert_array_equal(record().weights["k/DequantizeLinear"].factor, [1.0, -1.0])


def test_recorded_keeps_factors_and_what_it_does_not_know() -> None:
    weight = Recorded.from_json(record().to_json()).weights["k/DequantizeLinear"]
    np.testing.assert_array_equal(weight.factor, [1.0, -1.0])
    assert (weight.quantizer, weight.digest, weight.axis) == ("k", "0" * 64, 1)
    empty = Recorded.from_json(Recorded().to_json())
    assert (empty.readers, empty.unsigned, empty.half) == (None, None, False)


def test_pack_keeps_every_bit_of_float32() -> None:
    values = np.float32([[0.1, -0.0], [np.inf, 1e-45]])
    again = unpack(pack(values.T.astype(np.float64)))
    assert again.dtype == np.float32
    assert again.tobytes() == np.ascontiguousarray(values.T).tobytes()
    for text in ("AAA", "AAA=", "?AAAAAA=", "?AAAAAA==", "AAAA"):
        with pytest.raises(ValueError, match=r"."):
            unpack(text)


@pytest.mark.parametrize("axis", [0, 1])
def test_integer_digest_takes_channels_of_factor_zero_as_zeros(axis: int) -> None:
    integers = np.arange(1, 7, dtype=np.int8).reshape(2, 3)
    factor = np.float32([1, 0, 1])[: integers.shape[axis]]
    dead = integers.copy()
    dead[(1,) if axis == 0 else (slice(None), 1)] = 0
    assert integer_digest(integers, factor, axis) == integer_digest(dead, None, axis)
    assert integer_digest(integers, factor, axis) != integer_digest(integers, None, axis)
    assert integer_digest(integers, np.abs(factor) + 1, axis) == integer_digest(
        integers, None, axis
    )


def test_integer_digest_takes_a_scalar() -> None:
    assert integer_digest(np.int8(3), np.float32([0]), 0) == integer_digest(np.int8(3), None, 0)
