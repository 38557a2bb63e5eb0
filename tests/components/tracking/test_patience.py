"""Requests to a store that is busy for a while."""

from __future__ import annotations

from functools import partial

import pytest

from qatline.components.support.retries import repeated
from qatline.components.tracking import patience
from qatline.components.tracking.patience import is_busy, patient


class BusyError(Exception):
    """What MLflow raises for a database that is locked."""

    error_code = "TEMPORARILY_UNAVAILABLE"


@pytest.mark.parametrize(
    ("error", "busy"),
    [
        (BusyError(), True),
        (Exception("... (too many 503 error responses)"), True),
        (ValueError("no"), False),
        (BusyError("database or disk is full"), False),
        (Exception("too many 500 error responses"), False),
    ],
)
def test_patient_repeats_while_the_store_is_busy(
    monkeypatch: pytest.MonkeyPatch, error: Exception, busy: bool
) -> None:
    pauses, errors = list[float](), [error]

    def request() -> str:
        if errors:
            raise errors.pop()
        return "answer"

    monkeypatch.setattr(patience, "repeated", partial(repeated, sleep=pauses.append))
    assert is_busy(error) is busy
    if busy:
        assert patient(request) == "answer"
    else:
        with pytest.raises(type(error)):
            patient(request)
    assert len(pauses) == busy
