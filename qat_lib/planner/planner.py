"""plan_quantization: ask spec and cases, decide about layers, collect the quantizers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from qat_lib.custom_qdq_cases import TensorRTQDQCase
from qat_lib.errors import SpecError
from qat_lib.graph.existing_quantizers import refuse_keras_quantized
from qat_lib.graph.layer_graph import LayerGraph
from qat_lib.options import Mode
from qat_lib.plan import QuantizationPlan
from qat_lib.planner.activations import activation_entries
from qat_lib.planner.decisions import decide
from qat_lib.planner.entries import composite_entries, weight_entries
from qat_lib.planner.wants import Wants
from qat_lib.selection import Selector, warn_unknown_names
from qat_lib.spec import QuantizationSpec

MODES = get_args(Mode)


def plan_quantization(
    model: Any,
    quantization_mode: str = "full",
    quantization_spec: QuantizationSpec | None = None,
    custom_qdq_cases: Sequence[Any] | Literal["auto"] | None = None,
    *,
    unsigned: bool = False,
) -> QuantizationPlan:
    """Decide which tensors and weights of a model get a quantizer, and why. Nothing is changed.

    Without cases only the default table and the spec place quantizers; the command line and the
    pipeline use the case for TensorRT, as ``custom_qdq_cases="auto"`` does here.

    Args:
        model: a Functional or Sequential Keras model, nested ones included.
        quantization_mode: ``"full"`` (default): all supported layers by the default table, as far
            as the spec and the cases say nothing else; ``"partial"``: only what the spec and the
            cases name.
        quantization_spec: what the user asks for.
        custom_qdq_cases: objects with ``case(keras_model, qspec) -> QuantizationSpec``; a later one
            wins. ``"auto"``: ``qat_lib.TensorRTQDQCase``, which serves the other engines as
            well. None (default): no cases.
        unsigned: whether tensors that are never negative, such as those behind a ReLU, get
            unsigned integers: 255 steps where signed ones have 127, and less work in the kernels of
            CPUs. Default False. For OpenVINO and ONNX Runtime; TensorRT takes signed integers only.

    Returns:
        The plan, for ``qat_lib.apply_plan``.

    Raises:
        SpecError: the mode, the spec or a case is wrong.
        UnsupportedModelError: the model is subclassed, not built, or quantized by Keras's own
            ``quantize``.
    """
    cases = _cases(custom_qdq_cases)
    if quantization_mode not in MODES:
        raise SpecError(
            f"quantization_mode must be 'full' or 'partial'. Received: {quantization_mode!r}."
        )
    if quantization_spec is not None and not isinstance(quantization_spec, QuantizationSpec):
        raise SpecError(
            "quantization_spec must be a QuantizationSpec. Received: "
            f"{type(quantization_spec).__name__}."
        )
    if (
        quantization_mode == "partial"
        and not cases
        and not (quantization_spec and quantization_spec.layers)
    ):
        raise SpecError(
            "Partial mode quantizes only what a spec or a case names: give at least one of them."
        )
    graph = LayerGraph(model)
    refuse_keras_quantized(model)
    warn_unknown_names(quantization_spec, _layer_names(graph), model.name)
    specs = [(type(case).__name__, _case_spec(case, model, quantization_spec)) for case in cases]
    selector = Selector(quantization_mode, quantization_spec, specs)
    decided, inner, skipped = decide(graph, selector, quantization_mode)
    weights = (*weight_entries(graph, decided), *composite_entries(graph, inner))
    taken = {*(entry.name for entry in weights), *(f"quant_{layer}" for layer in decided)}
    return QuantizationPlan(
        model=model.name,
        mode=quantization_mode,
        quantizers=(
            *activation_entries(Wants(graph, decided), unsigned=unsigned, taken=taken),
            *weights,
        ),
        skipped=tuple(skipped),
        wrapped=tuple(decided),
    )


def _layer_names(graph: LayerGraph) -> list[str]:
    """Return the names of the layers, and as ``"<layer>/<path>"`` of those inside of composites."""
    names = [name for name, _ in graph.layers()]
    for name, composite in graph.composites.items():
        names.extend(f"{name}/{path}" for path in composite.layers)
    return names


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


def _case_spec(case: Any, model: Any, spec: QuantizationSpec | None) -> QuantizationSpec:
    """Return what a custom Q/DQ case asks for; it gets a copy of the user's spec.

    Raises:
        SpecError: the case returns no QuantizationSpec.
    """
    result = case.case(model, copy.deepcopy(spec) if spec is not None else QuantizationSpec())
    if not isinstance(result, QuantizationSpec):
        raise SpecError(
            f"{type(case).__name__}.case must return a QuantizationSpec, empty if there is nothing "
            "to change. "
            f"Received: {type(result).__name__}."
        )
    return result
