"""plan_quantization: plan the quantization of a PyTorch module."""

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
from qat_lib.torch.shapes import example_arguments, propagate_shapes
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
    """Plan the quantizers of a module.

    Each decision has a reason; the module is not changed. The plan uses the same default table,
    cases and placement rules as for Keras. Modules are named by their path, such as
    ``layer1.0.conv1``, and functions by their node in the graph of torch.fx, such as ``add_1``;
    further calls of a module are ``conv@1``, ``conv@2``.

    Args:
        module: a module traceable by torch.fx, or its traced form.
        quantization_mode: ``"full"`` (default): all supported operations by the default table,
            unless the spec or a case overrides it; ``"partial"``: only operations in the spec and
            the cases.
        quantization_spec: the user's requests; an entry by class accepts names of ``torch.nn``
            (``"Conv2d"``) and of functions (``"add"``).
        custom_qdq_cases: objects with ``case(module, qspec) -> QuantizationSpec`` for the traced
            module; later cases take precedence. ``"auto"``: ``qat_lib.TensorRTQDQCase``, suitable
            for all engines. None (default): no cases.
        example_input: a tensor, a tuple of tensors, or a dict of tensors by argument, of two
            samples or more: the source of tensor shapes, and of the branches of code that depends
            on sizes. Default None: operands of additions are assumed to have equal shapes.
        unsigned: whether non-negative tensors get unsigned integers. Default False.
        cpu: kind of CPU for the engine; see ``qat_lib.plan_quantization``. Default None.

    Returns:
        The plan, for ``qat_lib.torch.apply_plan``.

    Raises:
        SpecError: the mode, the spec or a case is wrong.
        UnsupportedModelError: torch.fx can't trace the module, or the module is already quantized
            by another tool.
    """
    request = PlanRequest.of(
        quantization_mode, quantization_spec, custom_qdq_cases, unsigned=unsigned, cpu=cpu
    )
    return plan_graph(module_graph(module, example_input), request)


def module_graph(module: nn.Module, example_input: Any = None) -> ModuleGraph:
    """Return the graph of a module, with shapes if example inputs are given.

    Raises:
        UnsupportedModelError: ``module`` is not a module, or torch.fx can't trace it.
    """
    if not isinstance(module, nn.Module):
        raise UnsupportedModelError(
            f"Expected a torch.nn.Module. Received: {type(module).__name__}."
        )
    refuse_other_tools(module)
    if example_input is not None:
        example = example_arguments(module, example_input)
        module = trace_module(module, example=example)
        propagate_shapes(module, tuple(example.values()))
    return ModuleGraph(module)
