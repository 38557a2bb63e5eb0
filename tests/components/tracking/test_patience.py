"""Requests to a store that is busy for a while."""

from __future__ import annotations

import pytest

from qatline.components.tracking.patience import is_busy, patient


class BusyError(Exception):
    """What MLflow raises for a database that is locked."""

    error_code = "TEMPORARILY_UNAVAILABLE"


class Request:
    """Fails some times, then answers; its clock goes as it sleeps."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.pauses: list[float] = []
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"

    def repeat(self) -> str:
        return patient(self, seconds=10, clock=lambda: sum(self.pauses), sleep=self.pauses.append)


def test_patient_repeats_while_the_store_is_busy() -> None:
    request = Request(BusyError(), Exception("... (too many 503 error responses)"), BusyError())
    assert request.repeat() == "answer"
    assert request.made == 4
    assert request.pauses == sorted(request.pauses)
    assert 0.1 <= request.pauses[0] <= 0.2


def test_patient_gives_up_in_time() -> None:
    request = Request(*(BusyError(str(number)) for number in range(100)))
    with pytest.raises(BusyError):
        request.repeat()
    assert 5 < sum(request.pauses) <= 10
    assert 4 <= request.made <= 12


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        BusyError("database or disk is full"),
        Exception("too many 500 error responses"),
    ],
)
def test_patient_raises_other_errors_at_once(error: Exception) -> None:
    request = Request(error)
    assert not is_busy(error)
    with pytest.raises(type(error)):
        request.repeat()
    assert (request.made, request.pauses) == (1, [])
