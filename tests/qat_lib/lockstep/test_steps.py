"""run_steps: both forms of a model without any framework."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qat_lib.calibrators.collecting import active_collector
from qat_lib.lockstep.steps import BothForms, ModelStep, run_steps


def rounded(inputs: Sequence[Any]) -> list[Any]:
    """Round as a quantizer does, unless one passes its input on."""
    return [inputs[0] if active_collector() is not None else round(inputs[0])]


@contextmanager
def negation() -> Iterator[Any]:
    yield lambda x: -x


GIVEN = {"x": BothForms(float=[1.75, 2.25], quantized=[1.75, 2.25])}
STEPS = [
    ModelStep(inputs=("x",), outputs=("y",), run=rounded, call="round"),
    ModelStep(inputs=(), outputs=("two",), run=lambda inputs: [2]),
    ModelStep(
        inputs=("y", "two"),
        outputs=("z",),
        run=lambda inputs: [inputs[0] * inputs[1]],
        call="double",
        without_activation=negation,
    ),
    ModelStep(inputs=("z",), outputs=("end",), run=lambda inputs: inputs, call="end"),
]


def test_run_steps_shows_calls_in_both_forms() -> None:
    seen: dict[str, Any] = {}
    run_steps(STEPS, GIVEN, lambda call, pairs: seen.update({call: pairs[0]}))
    assert list(seen) == ["round", "double", "end"]
    assert (seen["round"].float, seen["round"].quantized) == ([1.75, 2.25], [2, 2])
    assert (seen["double"].float, seen["double"].quantized) == ([3.5, 4.5], [4, 4])
    assert (seen["end"].float, seen["end"].quantized) == ([-3.5, -4.5], [-4, -4])


def test_run_steps_hands_changed_outputs_on() -> None:
    seen: dict[str, Any] = {}

    def visit(call: str, pairs: tuple[BothForms, ...]) -> tuple[BothForms, ...] | None:
        seen[call] = pairs[0]
        if call != "round":
            return None
        return (BothForms(float=pairs[0].float, quantized=[10, 20]),)

    run_steps(STEPS, GIVEN, visit)
    assert seen["double"].quantized == [20, 40]


def test_run_steps_prepares_calls_before_they_run_quantized() -> None:
    seen: list[Any] = []
    run_steps(
        STEPS,
        GIVEN,
        lambda call, pairs: seen.append(call),
        prepare=lambda call, inputs, in_float: seen.append((call, in_float)),
    )
    assert seen[:2] == [("round", [[1.75], [2.25]]), "round"]
    assert len(seen) == 6


def test_run_steps_stays_in_float_when_asked() -> None:
    seen: dict[str, Any] = {}
    run_steps(STEPS, GIVEN, lambda call, pairs: seen.update({call: pairs[0]}), form="float")
    assert seen["double"].quantized == [3.5, 4.5]
