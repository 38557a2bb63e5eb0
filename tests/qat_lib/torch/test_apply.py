"""apply_plan: one quantizer per planned tensor, read by planned readers."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch_twins import TWINS, Gated, Inception, Residual, Reused, images

import qat_lib.torch
from qat_lib import QuantizationPlan, QuantizationSpec
from qat_lib.errors import PlanError, UnsupportedModelError
from qat_lib.torch import TensorQuantizer, apply_plan, model_quantizers, plan_quantization
from qat_lib.torch import nn as quant_nn
from qat_lib.torch.graph import ModuleGraph


def planned(module: nn.Module, network: str, **options: Any) -> QuantizationPlan:
    options = {"custom_qdq_cases": "auto"} | options
    return plan_quantization(module, example_input=images(network), **options)


def outputs(module: nn.Module, x: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = module(*x) if isinstance(x, tuple) else module(x)
    return found


def switched(module: nn.Module, *, on: bool) -> nn.Module:
    for quantizer in model_quantizers(module).values():
        quantizer.enable() if on else quantizer.disable()
    return module


def source_of(graph: ModuleGraph, tensor: str) -> str:
    """Return the name of a tensor's producing quantizer, or its own."""
    traits = graph.producer(tensor).traits
    return traits.quantizer.name if traits.is_quantizer else tensor


@pytest.mark.parametrize("network", TWINS)
def test_each_reader_of_plan_reads_its_quantizer(network: str) -> None:
    module = TWINS[network][0]()
    plan = planned(module, network)
    graph = ModuleGraph(apply_plan(module, plan))
    expected = {}
    for entry in plan.by_kind("activation"):
        for consumer in entry.consumers:
            expected[consumer.layer, consumer.input] = entry.name
    found = {}
    for call in graph.calls:
        for index, tensor in enumerate(call.inputs):
            if graph.producer(tensor).traits.is_quantizer:
                found[call.name, index] = source_of(graph, tensor)
    assert found == expected


@pytest.mark.parametrize("network", TWINS)
def test_weights_have_the_quantizers_of_the_plan(network: str) -> None:
    module = TWINS[network][0]()
    plan = planned(module, network)
    quantized = apply_plan(module, plan)
    quantizers = model_quantizers(quantized)
    assert set(quantizers) == {entry.name for entry in plan.quantizers}
    for entry in plan.by_kind("weight"):
        part = quantized.get_submodule(entry.layer)
        assert part.weight_quantizer is quantizers[entry.name]
        assert (part.weight_quantizer.axis, part.weight_quantizer.narrow_range) == ((0,), True)
        assert part.weight_quantizer.range_policy == "current"
        assert isinstance(part.input_quantizer, nn.Identity)


@pytest.mark.parametrize("network", TWINS)
@pytest.mark.parametrize("training", [False, True])
def test_quantizers_that_are_off_change_nothing(network: str, training: bool) -> None:
    torch.manual_seed(0)
    module = TWINS[network][0]().train(training)
    twin = copy.deepcopy(module)
    quantized = switched(apply_plan(module, planned(module, network)), on=False)
    assert quantized.training is training
    x = images(network, 4)
    torch.manual_seed(1)
    expected = outputs(twin, x)
    torch.manual_seed(1)
    assert torch.equal(outputs(quantized, x), expected)
    switched(quantized, on=True)
    assert not torch.equal(outputs(quantized.eval(), x), outputs(twin.eval(), x))


def test_the_original_stays_as_it_is() -> None:
    module = Residual()
    before = copy.deepcopy(module.state_dict())
    modules = dict(module.named_modules())
    quantized = apply_plan(module, planned(module, "residual"))
    quantized.train()(images("residual", 4)).sum().backward()
    assert dict(module.named_modules()) == modules
    assert module.stem_relu.inplace
    assert all(parameter.grad is None for parameter in module.parameters())
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_state_of_the_original_loads() -> None:
    quantized = apply_plan(Residual(), planned(Residual(), "residual"))
    other = Residual()
    missing, unexpected = quantized.load_state_dict(other.state_dict(), strict=False)
    assert unexpected == []
    assert not any("quantizer" not in name for name in missing)
    assert torch.equal(quantized.get_submodule("head").weight, other.head.weight)


def test_gradients_reach_every_parameter() -> None:
    quantized = apply_plan(Gated(), planned(Gated(), "gated")).train()
    quantized(images("gated", 4))[:, 0].sum().backward()
    for name, parameter in quantized.named_parameters():
        assert parameter.grad is not None, name


def test_a_tied_group_shares_one_module() -> None:
    plan = planned(Inception(), "inception")
    tied = [entry for entry in plan.by_kind("activation") if entry.group]
    graph = ModuleGraph(apply_plan(Inception(), plan))
    calls = [call for call in graph.calls if call.layer == tied[0].name]
    assert len(calls) == len(tied) > 2
    assert len({call.operation for call in calls}) == 1
    assert calls[0].operation.shared
    alone = next(entry for entry in plan.by_kind("activation") if not entry.group)
    assert not graph.by_name[alone.name].operation.shared


def test_a_reused_module_stays_one_module() -> None:
    quantized = apply_plan(Reused(), planned(Reused(), "reused"), example_input=images("reused"))
    calls = [node for node in quantized.graph.nodes if node.target == "conv"]
    assert len(calls) == 2
    assert isinstance(quantized.get_submodule("conv"), quant_nn.QuantConv2d)


def test_options_of_the_plan_reach_the_quantizers() -> None:
    spec = QuantizationSpec().add(
        "head",
        num_bits=6,
        per_channel=False,
        calibrator="mse",
        range_policy="learned",
        weight_range_policy="frozen",
    )
    plan = planned(Residual(), "residual", quantization_spec=spec, unsigned=True)
    quantizers = model_quantizers(apply_plan(Residual(), plan))
    of_input, of_weight = quantizers["flatten_quantizer"], quantizers["head_weight_quantizer"]
    assert (of_input.num_bits, of_input.calibrator, of_input.unsigned) == (6, "mse", True)
    assert (of_input.range_policy, of_input.learn_amax) == ("learned", True)
    assert (of_weight.num_bits, of_weight.axis, of_weight.range_policy) == (6, None, "frozen")
    assert of_weight.calibrated
    assert quantizers["x_quantizer"].range_policy == "ema"


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.second(torch.relu(self.first(x)))


def test_weights_that_two_modules_share_stay_shared() -> None:
    quantized = qat_lib.torch.quantize_model(Tied())
    assert quantized.get_submodule("first").weight is quantized.get_submodule("second").weight
    assert len(list(quantized.parameters())) == 3


class Subclass(nn.Conv2d):
    """A convolution under another name."""


def test_a_subclass_without_a_forward_is_replaced() -> None:
    quantized = qat_lib.torch.quantize_model(nn.Sequential(Subclass(3, 4, 1)))
    assert isinstance(quantized.get_submodule("0"), quant_nn.QuantConv2d)


def test_a_name_in_use_is_not_taken() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.x_quantizer = nn.Tanh()

        def forward(self, x: Any) -> Any:
            return self.x_quantizer(self.conv(x))

    quantized = qat_lib.torch.quantize_model(Named())
    assert isinstance(quantized.get_submodule("x_quantizer"), nn.Tanh)
    assert "conv_weight_quantizer" in model_quantizers(quantized)
    assert len(model_quantizers(quantized)) == 2


def test_a_quantized_module_is_not_quantized_twice() -> None:
    first = apply_plan(Residual(), planned(Residual(), "residual")).eval()
    qat_lib.torch.calibrate(first, images("residual", 8), "max")
    again = plan_quantization(first, custom_qdq_cases="auto")
    assert again.by_kind("weight") == []
    second = apply_plan(first, again).eval()
    x = images("residual", 4)
    assert torch.equal(outputs(second, x), outputs(first, x))
    assert set(model_quantizers(second)) == set(model_quantizers(first))


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mine = TensorQuantizer()
        self.mine.amax = 3.0
        self.left = nn.Linear(4, 4)
        self.right = quant_nn.QuantLinear(4, 4)
        self.right.input_quantizer.amax = 5.0
        self.plain = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.left(self.mine(x)) + self.right(x) + self.plain(x)


def test_quantizers_by_hand_become_one_for_tensor() -> None:
    quantized = qat_lib.torch.quantize_model(ByHand())
    found = model_quantizers(quantized)
    assert set(found) == {
        *("mine", "left_weight_quantizer", "plain_weight_quantizer", "right._weight_quantizer")
    }
    assert found["mine"].amax.item() == 5.0
    readers = [n for n in quantized.graph.nodes if n.target in ("left", "right", "plain")]
    assert [node.args[0].target for node in readers] == ["mine", "mine", "mine"]
    assert len([node for node in quantized.graph.nodes if node.target == "mine"]) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor": "gone:0"}, "names the tensor 'gone:0'"),
        ({"tensor": "head/bias", "kind": "weight", "consumers": ()}, "Linear has no such weight"),
        ({"tensor": "pool/weight", "kind": "weight", "consumers": ()}, "MaxPool2d has no such"),
    ],
)
def test_a_plan_of_another_module_is_refused(change: dict[str, Any], message: str) -> None:
    plan = planned(Residual(), "residual")
    wrong = replace(plan.by_kind("activation")[0], **change)
    with pytest.raises(PlanError, match=message):
        apply_plan(Residual(), replace(plan, quantizers=(wrong,)))


@pytest.mark.parametrize("name", ["/stem/Conv", "stem/Conv", "Conv_0"])
def test_names_of_converted_onnx_graphs_are_found(name: str) -> None:
    root, graph = nn.Module(), torch.fx.Graph()
    root.add_module(name, nn.Conv2d(3, 4, 3))
    graph.output(graph.call_module(name, (graph.placeholder("input_1"),)))
    module = torch.fx.GraphModule(root, graph).eval()
    plan = qat_lib.torch.plan_quantization(module)
    assert plan.wrapped == (name,)
    quantized = qat_lib.torch.apply_plan(module, plan).eval()
    data = torch.randn(2, 3, 8, 8)
    qat_lib.torch.calibrate(quantized, data)
    assert 0 < (quantized(data) - module(data)).abs().max() < 0.1


def test_uncopyable_module_is_refused() -> None:
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("one of a kind")

    plan = plan_quantization(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(UnsupportedModelError, match=r"Sequential can't be copied: .*one of a kind"):
        apply_plan(nn.Sequential(Stubborn(2, 2)), plan)


def loaded(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, loaded])
def test_the_copy_can_be_copied_and_saved(copied: Any) -> None:
    quantized = apply_plan(Residual(), planned(Residual(), "residual")).eval()
    qat_lib.torch.calibrate(quantized, images("residual", 4), "max")
    x = images("residual", 2)
    again = copied(quantized)
    assert isinstance(again, fx.GraphModule)
    assert torch.equal(outputs(again, x), outputs(quantized, x))
    assert set(model_quantizers(again)) == set(model_quantizers(quantized))


def test_the_state_loads_into_another_copy() -> None:
    quantized = apply_plan(Residual(), planned(Residual(), "residual")).eval()
    qat_lib.torch.calibrate(quantized, images("residual", 4), "max")
    x = images("residual", 2)
    other = apply_plan(Residual(), planned(Residual(), "residual")).eval()
    other.load_state_dict(quantized.state_dict())
    assert torch.equal(outputs(other, x), outputs(quantized, x))
