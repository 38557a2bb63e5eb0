"""quantize_model: plan the quantization of a PyTorch module and apply the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import fx, nn

from qat_lib.core.spec import QuantizationSpec
from qat_lib.options import Cpu
from qat_lib.planner.planner import plan_graph
from qat_lib.planner.request import PlanRequest
from qat_lib.torch.apply import apply_plan
from qat_lib.torch.planner import module_graph


def quantize_model(
    module: nn.Module,
    quantization_mode: str = "full",
    quantization_spec: QuantizationSpec | None = None,
    custom_qdq_cases: Sequence[Any] | Literal["auto"] | None = None,
    *,
    example_input: Any = None,
    unsigned: bool = False,
    cpu: Cpu | None = None,
) -> fx.GraphModule:
    """Return a copy of a module with fake-quantized tensors and weights.

    Without cases, quantizers are placed by the default table and the spec only: residual
    connections, concatenations and poolings are not quantized, as with ``qat_lib.quantize_model``.

    Args:
        module: a module traceable by torch.fx, in training or in inference; it is not changed.
        quantization_mode: ``"full"`` (default) or ``"partial"``.
        quantization_spec: exceptions from the default.
        custom_qdq_cases: objects that place quantizers by pattern. ``"auto"``:
            ``qat_lib.TensorRTQDQCase``, suitable for all engines. None (default): no cases.
        example_input: a tensor, a tuple of tensors, or a dict of tensors by argument, of two
            samples or more: the source of tensor shapes, and of the branches of code that depends
            on sizes. Default None.
        unsigned: whether non-negative tensors get unsigned integers. Default False. For OpenVINO
            and ONNX Runtime; TensorRT accepts signed integers only.
        cpu: kind of CPU for the engine; see ``qat_lib.plan_quantization``. Default None.

    Returns:
        A ``torch.fx.GraphModule`` with the same parameters, on the same device and in the same
        mode, to calibrate, train, save and export. It takes the required arguments of ``module``;
        optional arguments keep their default.

    Raises:
        SpecError: the mode, the spec or a case is wrong.
        UnsupportedModelError: the module can't be traced by torch.fx, or can't be copied.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
        >>> quantized = quantize_model(model)
        >>> type(quantized.get_submodule("0")).__name__
        'QuantConv2d'
    """
    request = PlanRequest.of(
        quantization_mode, quantization_spec, custom_qdq_cases, unsigned=unsigned, cpu=cpu
    )
    graph = module_graph(module, example_input)
    return apply_plan(graph.model, plan_graph(graph, request))
