from __future__ import annotations

import pytest

from qatline.components.support.retries import repeated


class Request:
    """Fails some times, then succeeds; its clock advances as it sleeps."""

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
        return repeated(
            self,
            lambda error: isinstance(error, OSError),
            seconds=10,
            clock=lambda: sum(self.pauses),
            sleep=self.pauses.append,
        )


def test_repeated_repeats_after_transient_errors() -> None:
    request = Request(OSError(), OSError(), OSError())
    assert request.repeat() == "answer"
    assert request.made == 4
    assert request.pauses == sorted(request.pauses)
    assert 0.1 <= request.pauses[0] <= 0.2


def test_repeated_gives_up_in_time() -> None:
    request = Request(*(OSError(str(number)) for number in range(100)))
    with pytest.raises(OSError, match=r"^\d+$"):
        request.repeat()
    assert 5 < sum(request.pauses) <= 10
    assert 4 <= request.made <= 12
    assert max(request.pauses) <= 3


def test_repeated_raises_other_errors_at_once() -> None:
    request = Request(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        request.repeat()
    assert (request.made, request.pauses) == (1, [])
