"""What ranges.json says of each quantizer."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qatline.components.artifacts.models import QuantizerRange
from qatline.components.training.framework import Oscillation
from qatline.components.training.ranges import describe_ranges, with_oscillation

PLAN = SimpleNamespace(quantizers=[SimpleNamespace(name="x", tensor="x:0", kind="activation")])
QUANTIZERS: Any = {
    "x": SimpleNamespace(amax=np.float32(2), unsigned=True),
    "mine": SimpleNamespace(amax=np.float32([[1, 3]]), unsigned=False),
}


def statistics(observed_max: float, counts: list[int]) -> Any:
    edges = np.linspace(0, 2, len(counts) + 1)
    return SimpleNamespace(
        observed_max=observed_max, method="mse", counts=np.array(counts), edges=edges
    )


def test_describe_ranges_without_a_report() -> None:
    nothing = {"observed_max": None, "method": None, "histogram": None}
    found = describe_ranges(QUANTIZERS, PLAN)
    assert {name: entry.to_dict() for name, entry in found.items()} == {
        "x": {"tensor": "x:0", "kind": "activation", "unsigned": True, "amax": 2.0, **nothing},
        "mine": {"tensor": None, "kind": None, "unsigned": False, "amax": [1.0, 3.0], **nothing},
    }


def test_describe_ranges_merges_bins_into_128() -> None:
    counts = np.arange(4096)
    report = SimpleNamespace(tensors={"x": statistics(1.0, list(counts))})
    described = describe_ranges(QUANTIZERS, PLAN, report)["x"]
    assert (described.observed_max, described.method) == (1.0, "mse")
    histogram = described.histogram
    assert histogram is not None
    assert histogram.edges == pytest.approx([i / 128 for i in range(129)])
    # The lower half of the fine bins lies below 1.0: 16 of them to each.
    assert histogram.counts == counts[:2048].reshape(128, 16).sum(axis=1).tolist()


def test_describe_ranges_takes_a_tensor_of_zeros() -> None:
    report = SimpleNamespace(tensors={"x": statistics(0.0, [5, 0])})
    report.tensors["x"].edges = np.zeros(3)
    histogram = describe_ranges(QUANTIZERS, PLAN, report)["x"].histogram
    assert histogram is not None
    assert (histogram.counts[0], sum(histogram.counts), histogram.edges[-1]) == (5, 5, 1.0)


def test_with_oscillation_adds_shares_to_the_weights_that_were_measured() -> None:
    ranges = {"w": QuantizerRange(kind="weight"), "x": QuantizerRange(kind="activation")}
    found = with_oscillation(ranges, Oscillation(oscillating={"w": 0.25}, frozen={"w": 0.5}))
    assert (found["w"].oscillating, found["w"].held) == (0.25, 0.5)
    assert found["x"].to_dict() == {"kind": "activation"}
    assert ranges["w"].oscillating is None
