"""Gains of channels: what a unit of noise in each adds to the outputs."""

from __future__ import annotations

import numpy as np
import pytest

from qat_lib.calibrators.gains import GroupedWeights


def test_gains_are_sums_of_squares_over_outputs_and_taps() -> None:
    weights = np.array([[[1.0, 2.0], [0.0, 3.0]], [[0.0, 0.0], [4.0, 0.0]]])
    found = GroupedWeights(weights=weights).gains(None)
    np.testing.assert_allclose(found, np.array([5.0, 25.0]) / 15)


def test_gains_follow_the_factors_of_the_outputs() -> None:
    weights = np.eye(2)[:, :, None]
    found = GroupedWeights(weights=weights).gains(np.array([1.0, 3.0]))
    np.testing.assert_allclose(found, [0.2, 1.8])


def test_gains_of_groups_are_in_the_order_of_the_channels() -> None:
    # Two groups of two channels; the second group has two outputs of its own.
    weights = np.array([[1.0, 2.0], [0.0, 0.0], [3.0, 0.0], [4.0, 6.0]])[:, :, None]
    found = GroupedWeights(weights=weights, groups=2).gains(None)
    np.testing.assert_allclose(found, np.array([1.0, 4.0, 25.0, 36.0]) / 16.5)


@pytest.mark.parametrize("groups", [1, 2])
def test_gains_of_zero_weights_are_alike(groups: int) -> None:
    found = GroupedWeights(weights=np.zeros((2, 3, 1)), groups=groups).gains(None)
    np.testing.assert_array_equal(found, np.ones(3 * groups))


def test_gains_leave_out_factors_of_another_axis() -> None:
    weights = np.eye(2)[:, :, None]
    found = GroupedWeights(weights=weights).gains(np.array([1.0, 3.0, 5.0]))
    np.testing.assert_array_equal(found, [1.0, 1.0])
