"""Plan options are checked before any model is read."""

from typing import Any

import pytest

from qat_lib import QuantizationSpec, TensorRTQDQCase
from qat_lib.errors import SpecError
from qat_lib.planner.request import PlanRequest


def test_request_takes_cases_by_name() -> None:
    request = PlanRequest.of("full", None, "auto", unsigned=True)
    assert [type(case) for case in request.cases] == [TensorRTQDQCase]
    assert (request.mode, request.spec, request.unsigned) == ("full", None, True)
    assert PlanRequest.of("full", None, None, unsigned=False).cases == ()


@pytest.mark.parametrize(
    ("mode", "spec", "cases", "message"),
    [
        ("half", None, None, r"must be 'full' or 'partial'\. Received: 'half'"),
        ("full", ["conv"], None, r"must be a QuantizationSpec\. Received: list"),
        ("full", None, "all", r"must be a list of cases\. Received: str"),
        ("full", None, [TensorRTQDQCase], r"give TensorRTQDQCase\(\) in place"),
        ("full", None, [object()], "needs a method case"),
        ("partial", QuantizationSpec(), None, "give at least one of them"),
    ],
)
def test_request_refuses(mode: str, spec: Any, cases: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        PlanRequest.of(mode, spec, cases, unsigned=False)
