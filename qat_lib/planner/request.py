"""PlanRequest: options of a plan, checked before the model is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from qat_lib.custom_qdq_cases import TensorRTQDQCase
from qat_lib.errors import SpecError
from qat_lib.options import Mode
from qat_lib.spec import QuantizationSpec

MODES = get_args(Mode)


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What a plan is asked for.

    Attributes:
        mode: ``"full"`` or ``"partial"``.
        spec: what the user asks for, or None.
        cases: objects with ``case(model, qspec) -> QuantizationSpec``; a later one wins.
        unsigned: whether tensors that are never negative get unsigned integers.
    """

    mode: str
    spec: QuantizationSpec | None
    cases: tuple[Any, ...]
    unsigned: bool

    @classmethod
    def of(
        cls,
        mode: str,
        spec: QuantizationSpec | None,
        cases: Sequence[Any] | Literal["auto"] | None,
        *,
        unsigned: bool,
    ) -> PlanRequest:
        """Check what the user gives.

        Raises:
            SpecError: the mode or the spec is none, a case is none, or partial mode gets neither.
        """
        listed = _cases(cases)
        if mode not in MODES:
            raise SpecError(f"quantization_mode must be 'full' or 'partial'. Received: {mode!r}.")
        if spec is not None and not isinstance(spec, QuantizationSpec):
            raise SpecError(
                f"quantization_spec must be a QuantizationSpec. Received: {type(spec).__name__}."
            )
        if mode == "partial" and not listed and not (spec and spec.layers):
            raise SpecError(
                "Partial mode quantizes only what a spec or a case names: give at least one of "
                "them."
            )
        return cls(mode=mode, spec=spec, cases=tuple(listed), unsigned=unsigned)


def _cases(cases: Sequence[Any] | str | None) -> list[Any]:
    """Return the cases as a list.

    Raises:
        SpecError: there is no list of them, or one is a class or has no ``case`` method.
    """
    if isinstance(cases, str) and cases == "auto":
        return [TensorRTQDQCase()]
    if cases is not None and (isinstance(cases, str) or not isinstance(cases, Iterable)):
        raise SpecError(
            f"custom_qdq_cases must be a list of cases. Received: {type(cases).__name__}."
        )
    listed = list(cases or ())
    for case in listed:
        if isinstance(case, type):
            raise SpecError(
                f"custom_qdq_cases holds objects: give {case.__name__}() in place of "
                f"{case.__name__}."
            )
        if not callable(getattr(case, "case", None)):
            raise SpecError(
                f"A custom Q/DQ case needs a method case(keras_model, qspec). Received: {case!r}."
            )
    return listed
