"""What two answers of one engine must share, on every CPU."""

import numpy as np

from qat_lib.engines.agreement import difference
from qat_lib.engines.environment import cpu_device
from qat_lib.engines.saturation import is_narrow
from qat_lib.engines.values import Array

SATURATED = 0.3
"""Largest difference, over the spread of the answers, where sums of INT8 products saturate."""


def assert_same_answer(one: Array, other: Array) -> None:
    """Check that two answers are equal, except for saturating sums.

    Those depend on how threads share a kernel's work.
    """
    if is_narrow(cpu_device()):
        assert difference([one], [other]) <= SATURATED
    else:
        np.testing.assert_array_equal(one, other)
