"""plan_quantization: apply spec and cases, decide about layers, collect the quantizers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

from qat_lib.core.plan import QuantizationPlan
from qat_lib.core.selection import Selector, check_names
from qat_lib.core.spec import QuantizationSpec
from qat_lib.errors import SpecError
from qat_lib.graph.call_graph import CallGraph
from qat_lib.graph.reading import read_graph
from qat_lib.options import Cpu
from qat_lib.planner.activations import activation_entries
from qat_lib.planner.decisions import decide
from qat_lib.planner.entries import composite_entries, weight_entries
from qat_lib.planner.request import PlanRequest
from qat_lib.planner.wants import Wants


def plan_quantization(
    model: Any,
    quantization_mode: str = "full",
    quantization_spec: QuantizationSpec | None = None,
    custom_qdq_cases: Sequence[Any] | Literal["auto"] | None = None,
    *,
    unsigned: bool = False,
    cpu: Cpu | None = None,
) -> QuantizationPlan:
    """Plan the quantizers of a model.

    Each decision has a reason; the model is not modified. Without cases, only the default table and
    the spec place quantizers; the command line and the pipeline use the TensorRT case, like
    ``custom_qdq_cases="auto"`` here.

    Args:
        model: a Functional or Sequential Keras model; nested models are supported.
        quantization_mode: ``"full"`` (default): all supported layers by the default table, unless
            the spec or a case overrides it; ``"partial"``: only layers that the spec and the cases
            name.
        quantization_spec: the user's overrides. Default None: no overrides.
        custom_qdq_cases: objects with ``case(keras_model, qspec) -> QuantizationSpec``; a later one
            wins. ``"auto"``: ``qat_lib.TensorRTQDQCase``, suitable for the other engines as well.
            None (default): no cases.
        unsigned: whether non-negative tensors, such as outputs of a ReLU, get unsigned integers:
            255 steps instead of 127, and faster CPU kernels. Default False. For OpenVINO and ONNX
            Runtime; TensorRT supports signed integers only.
        cpu: kind of CPU that will run the engine: ``"vnni"``, ``"avx2"`` or ``"arm"``
            (``qat_lib.engines.cpu_kind()`` returns this machine's). For ``"avx2"``, weight ranges
            leave room for sums of two products, because such CPUs compute them in 16 bits, and
            convolutions of images (2 to 4 channels) stay in float by default. None (default):
            any target without such sums, such as TensorRT.

    Returns:
        The plan, for ``qat_lib.apply_plan``.

    Raises:
        SpecError: the mode, the spec or a case is invalid, or the spec names a missing layer.
        UnsupportedModelError: the model is subclassed, not built, or quantized by Keras's own
            ``quantize``.
    """
    request = PlanRequest.of(
        quantization_mode, quantization_spec, custom_qdq_cases, unsigned=unsigned, cpu=cpu
    )
    return plan_graph(read_graph(model), request)


def plan_graph(graph: CallGraph, request: PlanRequest) -> QuantizationPlan:
    """Return the plan of a model of any framework, from its graph.

    Raises:
        SpecError: the spec or a case is invalid.
        UnsupportedModelError: another tool has quantized the model.
    """
    graph.refuse_quantized()
    spec, mode = request.spec, request.mode
    check_names(spec, _layer_names(graph), graph.name)
    specs = [(type(case).__name__, _case_spec(case, graph.model, spec)) for case in request.cases]
    selector = Selector(mode, spec, graph.catalog, specs, request.cpu)
    decided, inner, skipped = decide(graph, selector)
    weights = (
        *weight_entries(graph, decided, cpu=request.cpu),
        *composite_entries(graph, inner, cpu=request.cpu),
    )
    # Weight quantizers have fixed names, and wrappers are named quant_<layer>: both come first.
    taken = {*(entry.name for entry in weights), *(f"quant_{layer}" for layer in decided)}
    wants = Wants(graph, decided)
    return QuantizationPlan(
        model=graph.name,
        mode=mode,
        quantizers=(
            *activation_entries(wants, unsigned=request.unsigned, taken=taken),
            *weights,
        ),
        skipped=tuple(skipped),
        wrapped=tuple(decided),
        cpu=request.cpu,
    )


def _layer_names(graph: CallGraph) -> list[str]:
    """Return the names of all layers, inner ones included.

    A layer inside a composite is ``"<layer>/<path>"``.
    """
    names = [name for name, _ in graph.layers()]
    for name, composite in graph.composites.items():
        names.extend(f"{name}/{path}" for path in composite.layers)
    return names


def _case_spec(case: Any, model: Any, spec: QuantizationSpec | None) -> QuantizationSpec:
    """Return the spec of a custom Q/DQ case.

    The case gets a copy of the user's spec.

    Raises:
        SpecError: the case returns no QuantizationSpec.
    """
    # A copy: a case must not change the user's spec.
    result = case.case(model, copy.deepcopy(spec) if spec is not None else QuantizationSpec())
    if not isinstance(result, QuantizationSpec):
        raise SpecError(
            f"{type(case).__name__}.case must return a QuantizationSpec, empty if there is nothing "
            "to change. "
            f"Received: {type(result).__name__}."
        )
    return result
