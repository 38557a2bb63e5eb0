"""quantize_model: plan, then apply."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import fx, nn
from torch_twins import Residual, images

from qat_lib import QuantizationSpec, TensorRTQDQCase
from qat_lib.errors import SpecError
from qat_lib.torch import apply_plan, model_quantizers, plan_quantization, quantize_model
from qat_lib.torch.tracing import GraphTracer

ROOT = Path(__file__).parents[3]


def test_quantize_model_is_plan_and_apply() -> None:
    torch.manual_seed(0)
    module = Residual().eval()
    quantized = quantize_model(
        module, custom_qdq_cases="auto", example_input=images("residual"), unsigned=True
    )
    plan = plan_quantization(
        module,
        custom_qdq_cases=[TensorRTQDQCase()],
        example_input=images("residual"),
        unsigned=True,
    )
    assert isinstance(quantized, fx.GraphModule)
    assert set(model_quantizers(quantized)) == {entry.name for entry in plan.quantizers}
    expected = apply_plan(module, plan)
    x = images("residual", 2)
    with torch.no_grad():
        assert torch.equal(quantized(x), expected(x))


def test_quantize_model_traces_once_per_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[bool] = []
    trace = GraphTracer.trace

    def counted(tracer: GraphTracer, root: nn.Module) -> fx.Graph:
        modes.append(root.training)
        return trace(tracer, root)

    monkeypatch.setattr(GraphTracer, "trace", counted)
    quantized = quantize_model(Residual().eval(), example_input=images("residual"))
    assert sorted(modes) == [False, True]
    assert type(quantized).__name__ == "Residual"


def test_quantize_model_in_double_precision() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).double()
    result = quantize_model(module)(torch.randn(2, 4, dtype=torch.float64))
    assert result.dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization_mode": "half"}, "must be 'full' or 'partial'"),
        ({"quantization_mode": "partial"}, "give at least one"),
        ({"custom_qdq_cases": [TensorRTQDQCase]}, "give TensorRTQDQCase"),
        (
            {"quantization_spec": QuantizationSpec().add("Conv2D", is_keras_class=True)},
            r"No quantized module supports the layer class 'Conv2D'. Did you mean .*Conv2d",
        ),
    ],
)
def test_quantize_model_refuses(options: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        quantize_model(Residual(), **options)  # type: ignore[arg-type]


@pytest.mark.matrix
def test_quantize_model_within_quantized_modules() -> None:
    code = """
import torch
from torch import nn
from qat_lib.torch import quant_modules
model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
with quant_modules.quantized_modules():
    from qat_lib.torch import quantize_model
    quantized = quantize_model(model)
print(type(quantized.get_submodule("0")).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "QuantConv2d\n"
