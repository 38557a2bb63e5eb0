"""plan_quantization of a PyTorch module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from qat_lib.core.plan import QuantizationPlan
from qat_lib.core.spec import QuantizationSpec
from qat_lib.errors import UnsupportedModelError
from qat_lib.options import Cpu
from qat_lib.planner.planner import plan_graph
from qat_lib.planner.request import PlanRequest
from qat_lib.torch.existing_quantizers import refuse_other_tools
from qat_lib.torch.graph import ModuleGraph
from qat_lib.torch.shapes import example_inputs, propagate_shapes
from qat_lib.torch.tracing import trace_module


def plan_quantization(
    module: nn.Module,
    quantization_mode: str = "full",
    quantization_spec: QuantizationSpec | None = None,
    custom_qdq_cases: Sequence[Any] | Literal["auto"] | None = None,
    *,
    example_input: Any = None,
    unsigned: bool = False,
    cpu: Cpu | None = None,
) -> QuantizationPlan:
    """Decide which tensors and weights of a module to quantize.

    Each decision has a reason; the module is not changed. The plan is that of the Keras side: by
    the same default table, cases and rules of placement. Modules are named by their path, such as
    ``layer1.0.conv1``, and functions by their node in the graph of torch.fx, such as ``add_1``;
    further calls of a module are ``conv@1``, ``conv@2``.

    Args:
        module: a module that torch.fx traces, or its traced form.
        quantization_mode: ``"full"`` (default): all supported operations by the default table, as
            far as the spec and the cases say nothing else; ``"partial"``: only what they name.
        quantization_spec: what the user asks for; an entry by class takes names of ``torch.nn``
            (``"Conv2d"``) and of functions (``"add"``).
        custom_qdq_cases: objects with ``case(module, qspec) -> QuantizationSpec``, which get the
            traced module; a later one wins. ``"auto"``: ``qat_lib.TensorRTQDQCase``, which serves
            the other engines as well. None (default): no cases.
        example_input: a tensor, a tuple of tensors, or a dict of tensors by argument: shapes are
            learned from it. Default None: additions count as such of tensors of one shape.
        unsigned: whether non-negative tensors get unsigned integers. Default False.
        cpu: kind of CPU that will run the engine; see ``qat_lib.plan_quantization``. Default None.

    Returns:
        The plan, for ``qat_lib.torch.apply_plan``.

    Raises:
        SpecError: the mode, the spec or a case is wrong.
        UnsupportedModelError: torch.fx can't trace the module, or another tool has quantized it.
    """
    request = PlanRequest.of(
        quantization_mode, quantization_spec, custom_qdq_cases, unsigned=unsigned, cpu=cpu
    )
    return plan_graph(module_graph(module, example_input), request)


def module_graph(module: nn.Module, example_input: Any = None) -> ModuleGraph:
    """Return a module's graph, with shapes if example inputs are given.

    Raises:
        UnsupportedModelError: it is no module, or torch.fx can't trace it.
    """
    if not isinstance(module, nn.Module):
        raise UnsupportedModelError(
            f"Expected a torch.nn.Module. Received: {type(module).__name__}."
        )
    refuse_other_tools(module)
    if example_input is not None:
        example = example_inputs(module, example_input)
        module = trace_module(module, len(example))
        propagate_shapes(module, example)
    return ModuleGraph(module)
