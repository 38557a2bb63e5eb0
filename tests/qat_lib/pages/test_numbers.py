"""Numbers for people."""

from __future__ import annotations

import math

import pytest

from qat_lib.pages import numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.percent(0.97222), "97.22%"),
        (numbers.percent(math.nan), "–"),
        (numbers.percent(None), "–"),
        (numbers.points(0.0028), "+0.28 pp"),
        (numbers.points(-0.0056), "−0.56 pp"),
        (numbers.points(0.00001), "±0.00 pp"),
        (numbers.size(999), "999 B"),
        (numbers.size(999_600), "1 MB"),
        (numbers.size(186_123), "186 kB"),
        (numbers.size(102_500_000), "102 MB"),
        (numbers.size(3.2e12), "3.2e+03 GB"),
        (numbers.milliseconds(0.0402), "0.0402 ms"),
        (numbers.milliseconds(0.00402), "4.02 µs"),
        (numbers.milliseconds(21.84), "21.8 ms"),
        (numbers.rate(160_000), "160\u202f000 /s"),
        (numbers.significant(0.99999), "1.00"),
        (numbers.significant(-1234.5), "−1234"),
        (numbers.significant(0), "0"),
        (numbers.significant(1e-9), "1.00e−09"),
        (numbers.significant(True), "–"),
        (numbers.seconds(95), "1 min 35 s"),
        (numbers.seconds(4.23), "4.2 s"),
        (numbers.seconds(59.97), "1 min 0 s"),
        (numbers.seconds(7490), "2 h 5 min"),
    ],
)
def test_numbers_read_well(text: str, expected: str) -> None:
    assert text == expected
