"""quantize_model of a PyTorch module: plan, then apply."""

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

    Without cases only the default table and the spec place quantizers: residual connections,
    concatenations and poolings stay as they are, as with ``qat_lib.quantize_model``.

    Args:
        module: a module that torch.fx traces, in training or in inference; it is not changed.
        quantization_mode: ``"full"`` (default) or ``"partial"``.
        quantization_spec: which operations to treat differently from the default.
        custom_qdq_cases: objects that decide by pattern. ``"auto"``: ``qat_lib.TensorRTQDQCase``,
            which serves the other engines as well. None (default): no cases.
        example_input: a tensor, a tuple of tensors, or a dict of tensors by argument: shapes are
            learned from it. Default None.
        unsigned: whether non-negative tensors get unsigned integers. Default False. For OpenVINO
            and ONNX Runtime; TensorRT takes signed integers only.
        cpu: kind of CPU that will run the engine; see ``qat_lib.plan_quantization``. Default None.

    Returns:
        A ``torch.fx.GraphModule`` with the same parameters, on the same device and in the same
        mode, to calibrate, train, save and export. It takes the arguments that ``module`` needs;
        those with a default keep it.

    Raises:
        SpecError: the mode, the spec or a case is wrong.
        UnsupportedModelError: torch.fx can't trace the module, or it can't be copied.

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
