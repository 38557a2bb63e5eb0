"""PlanRequest: planning options, validated before the model is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from qat_lib.core.spec import QuantizationSpec
from qat_lib.custom_qdq_cases import TensorRTQDQCase
from qat_lib.errors import SpecError
from qat_lib.options import Cpu, Mode

MODES = get_args(Mode)
CPUS = get_args(Cpu)


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Options of a plan.

    Attributes:
        mode: ``"full"`` or ``"partial"``.
        spec: the user's overrides, or None.
        cases: objects with ``case(model, qspec) -> QuantizationSpec``; a later one wins.
        unsigned: whether non-negative tensors get unsigned integers.
        cpu: kind of CPU that will run the engine; None = no CPU.
    """

    mode: str
    spec: QuantizationSpec | None
    cases: tuple[Any, ...]
    unsigned: bool
    cpu: str | None

    @classmethod
    def of(
        cls,
        mode: str,
        spec: QuantizationSpec | None,
        cases: Sequence[Any] | Literal["auto"] | None,
        *,
        unsigned: bool,
        cpu: str | None = None,
    ) -> PlanRequest:
        """Validate the user's options.

        Raises:
            SpecError: the mode, the spec, a case or the CPU is invalid, or partial mode has neither
                spec nor case.
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
                "Partial mode quantizes only layers that a spec or a case names: give at least one "
                "of them."
            )
        if cpu is not None and cpu not in CPUS:
            raise SpecError(f"cpu must be None or one of {', '.join(CPUS)}. Received: {cpu!r}.")
        return cls(mode=mode, spec=spec, cases=tuple(listed), unsigned=unsigned, cpu=cpu)


def _cases(cases: Sequence[Any] | str | None) -> list[Any]:
    """Return the cases as a list.

    Raises:
        SpecError: ``cases`` is not a list, or a case is a class or has no ``case`` method.
    """
    if isinstance(cases, str) and cases == "auto":
        return [TensorRTQDQCase()]
    if cases is not None and (isinstance(cases, str) or not isinstance(cases, Iterable)):
        raise SpecError(
            f"custom_qdq_cases must be a list of cases. Received: {type(cases).__name__}."
        )
    listed = list(cases or ())
    for case in listed:
        # A class has a callable `case`, too, but without an instance.
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
