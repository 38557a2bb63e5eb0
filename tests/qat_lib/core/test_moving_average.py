"""How much of its past an average keeps."""

import pytest

from qat_lib.core.moving_average import check_decay, decay_at
from qat_lib.errors import SpecError


def test_decay_rises_to_what_is_asked_for() -> None:
    found = [decay_at(0.5, step) for step in range(1, 12)]
    assert found[:3] == pytest.approx([2 / 11, 3 / 12, 4 / 13])
    assert found == sorted(found)
    assert found[-1] == 0.5


def test_check_decay_takes_shares_below_one() -> None:
    check_decay(0.0)
    check_decay(0.9999)


@pytest.mark.parametrize("decay", [1.0, -0.01, float("nan")])
def test_check_decay_refuses_others(decay: float) -> None:
    with pytest.raises(SpecError, match=r"Expected a decay in \[0, 1\)\. Received"):
        check_decay(decay)
