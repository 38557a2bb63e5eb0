"""Which quantized weights turn back, and at what integer they are frozen."""

import numpy as np
import pytest

from qat_lib.core.oscillation import MOMENTUM, OscillationTracker


def follow(*steps: list[int], freeze_above: float | None = None) -> OscillationTracker:
    tracker = OscillationTracker(freeze_above=freeze_above)
    for values in steps:
        tracker.observe({"kernel": np.array(values)})
    return tracker


def test_a_weight_that_turns_back_oscillates() -> None:
    assert follow([3, 3], [4, 3], [3, 3]).shares() == {"kernel": 0.5}


def test_a_weight_that_goes_on_the_same_way_does_not() -> None:
    assert follow([3, -1], [4, -2], [4, -2], [5, -3]).shares() == {"kernel": 0.0}


def test_a_rest_between_two_turns_counts_as_nothing() -> None:
    assert follow([3], [4], [4], [4], [3]).shares() == {"kernel": 1.0}


def test_an_oscillation_is_forgotten() -> None:
    steps = [[3], [4], [3]] + [[3]] * 100
    assert follow(*steps).shares() == {"kernel": 0.0}
    assert follow(*steps[:50]).shares() == {"kernel": 1.0}


def test_tensors_are_followed_apart() -> None:
    tracker = OscillationTracker()
    for value in (0, 1, 0):
        tracker.observe({"a": np.array([[value]]), "b": np.array([7, 7])})
    assert tracker.shares() == {"a": 1.0, "b": 0.0}


def test_nothing_is_frozen_unless_asked() -> None:
    tracker = follow(*[[i % 2, 5] for i in range(50)])
    assert tracker.frozen("kernel") is None
    assert tracker.frozen_shares() == {"kernel": 0.0}


def test_a_weight_is_frozen_at_the_integer_it_had_most() -> None:
    # Two turns in four steps, four times: it is at 3 in three steps of four.
    steps = [[[3, 3, 4, 3][i % 4], 5] for i in range(40)]
    tracker = follow(*steps, freeze_above=3 * MOMENTUM)
    found = tracker.frozen("kernel")
    assert found is not None
    mask, integers = found
    assert mask.tolist() == [True, False]
    assert integers[0] == 3
    assert tracker.frozen_shares() == {"kernel": 0.5}
    assert tracker.shares() == {"kernel": 0.0}


def test_a_frozen_weight_stays_where_it_is() -> None:
    tracker = follow(*[[i % 2] for i in range(20)], freeze_above=MOMENTUM)
    before = tracker.frozen("kernel")
    for _ in range(500):
        tracker.observe({"kernel": np.array([90])})
    after = tracker.frozen("kernel")
    assert before is not None
    assert after is not None
    assert after[1] == before[1]


def test_an_unknown_tensor_has_nothing_frozen() -> None:
    assert follow([0]).frozen("other") is None


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_the_threshold_is_a_number_of_turns(turns: int) -> None:
    steps = [[i % 2] for i in range(turns + 2)]
    frozen = follow(*steps, freeze_above=2.5 * MOMENTUM).frozen("kernel")
    assert (frozen is not None) == (turns == 3)
