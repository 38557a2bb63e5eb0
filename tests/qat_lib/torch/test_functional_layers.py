"""Functions of weights become modules in a traced module."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import qat_lib.torch
from qat_lib.torch.tracing import trace_module

X = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))


class Calls(nn.Module):
    """A function of the input and of own parameters."""

    def __init__(self, function: Any, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


class PaddedConv(nn.Conv2d):
    """A convolution whose forward is not that of its base."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(x, (1, 0, 1, 0))
        return functional.conv2d(padded, self.weight, self.bias, self.stride, groups=self.groups)


def modules(traced: nn.Module) -> dict[str, str]:
    return {path: type(part).__name__ for path, part in traced.named_modules() if path}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Calls(lambda m, x: functional.linear(x, m.w), w=(3, 8)), "Linear"),
        (Calls(lambda m, x: functional.linear(x, bias=m.b, weight=m.w), w=(3, 8), b=(3,)), "Linear"),
        (Calls(lambda m, x: functional.conv1d(x[:, 0], m.w, stride=2), w=(5, 8, 3)), "Conv1d"),
        (
            Calls(lambda m, x: functional.conv2d(x, m.w, m.b, padding="same", groups=2),
                  w=(6, 2, 3, 3), b=(6,)),
            "Conv2d",
        ),
        (
            Calls(lambda m, x: torch.conv2d(x, m.w, None, (2, 1), (1, 0), dilation=2),
                  w=(6, 4, 3, 3)),
            "Conv2d",
        ),
        (Calls(lambda m, x: functional.conv3d(x[:, None], m.w), w=(2, 1, 3, 3, 3)), "Conv3d"),
        (
            Calls(lambda m, x: functional.conv_transpose1d(x[:, 0], m.w, stride=2), w=(8, 3, 2)),
            "ConvTranspose1d",
        ),
        (
            Calls(
                lambda m, x: functional.conv_transpose2d(
                    x, m.w, m.b, stride=2, output_padding=1, groups=2
                ),
                w=(4, 3, 3, 3), b=(6,),
            ),
            "ConvTranspose2d",
        ),
    ],
    ids=["linear", "keywords", "conv1d", "same", "options", "conv3d", "transposed", "groups"],
)  # fmt: skip
def test_function_becomes_module(module: nn.Module, expected: str) -> None:
    traced = trace_module(module)
    assert modules(traced) == {"w": expected}
    assert traced.w.weight is module.w
    assert torch.equal(traced(X), module(X))
    assert sum(p.numel() for p in traced.parameters()) == sum(
        p.numel() for p in module.parameters()
    )
    again = pickle.loads(pickle.dumps(traced))  # noqa: S301
    assert torch.equal(again(X), module(X))


@pytest.mark.parametrize(
    "module",
    [
        Calls(lambda m, x: x @ m.w, w=(8, 3)),
        Calls(lambda m, x: x.matmul(m.w) + m.b, w=(8, 3), b=(3,)),
        # As the layers of GPT-2.
        Calls(lambda m, x: torch.addmm(m.b, x.reshape(-1, 8), m.w), w=(8, 8), b=(8,)),
    ],
    ids=["operator", "method", "addmm"],
)
def test_product_becomes_linear_with_the_transposed_weight(module: nn.Module) -> None:
    traced = trace_module(module)
    assert modules(traced) == {"w": "Linear"}
    assert torch.equal(traced.w.weight, module.w.t())
    torch.testing.assert_close(traced(X), module(X))
    # A state of the module must not be loaded into it.
    assert not {"w"} & set(traced.state_dict())
    by_example = qat_lib.torch.quantize_model(module, custom_qdq_cases="auto", example_input=X)
    assert type(by_example.w).__name__ == "QuantLinear"


@pytest.mark.parametrize(
    "bias",
    [
        lambda m, x: torch.cat((m.b, torch.zeros(1), m.b)),
        lambda m, x: x[0, 0, 0, :3],
        lambda m, x: m.w[:, 0],
    ],
    ids=["joined", "input", "weight"],
)
def test_computed_bias_is_added_behind_the_module(bias: Any) -> None:
    module = Calls(
        lambda m, x: functional.linear(x[:, 0], m.v, bias(m, x)), v=(3, 8), b=(1,), w=(3, 1)
    )
    traced = trace_module(module)
    assert modules(traced) == {"v": "Linear"}
    assert traced.v.weight is module.v
    torch.testing.assert_close(traced(X), module(X))


class Standardized(nn.Conv2d):
    """A convolution with a standardized weight, as those of NFNets."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.weight.flatten(1)
        rows = (rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True)
        return functional.conv2d(x, rows.reshape_as(self.weight), self.bias)


def test_computed_weight_becomes_a_parameter() -> None:
    module = nn.Sequential(Standardized(4, 6, 3), nn.ReLU(), Standardized(6, 2, 1, bias=False))
    expected, names = module(X), list(module.state_dict())
    traced = trace_module(module)
    # Under other names, since a state of the module must not be loaded.
    path = "0.weight_computed"
    assert list(traced.state_dict()) == [
        f"{path}.weight", f"{path}.bias", "2.weight_computed.weight",
    ]  # fmt: skip
    assert torch.equal(traced(X), expected)
    assert list(module.state_dict()) == names
    quantized = qat_lib.torch.quantize_model(module, custom_qdq_cases="auto", example_input=X)
    assert type(quantized.get_submodule(path)).__name__ == "QuantConv2d"


def test_weight_computed_in_many_steps_becomes_a_parameter() -> None:
    def normalized(module: Any, x: torch.Tensor) -> torch.Tensor:
        weight = module.w.exp()
        for _ in range(30):  # each step reads the one before twice
            weight = weight / weight.sum(0)
            weight = weight / weight.sum(1, keepdim=True)
        return functional.linear(x, weight)

    module = Calls(normalized, w=(8, 8))
    traced = trace_module(module)
    assert modules(traced) == {"w_computed": "Linear"}
    assert torch.equal(traced(X), module(X))


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: functional.linear(functional.linear(x, m.w * 2), m.w * 3),
        lambda m, x: functional.linear(x, m.w * 2) + m.w[0],
        lambda m, x: functional.linear(m.layer(x), m.layer.weight * m.w),
    ],
    ids=["weights", "sum", "layer"],
)
def test_weights_computed_from_a_shared_parameter_remain(function: Any) -> None:
    module = Calls(function, w=(8, 8))
    module.layer = nn.Linear(8, 8)
    traced = trace_module(module)
    assert set(modules(traced)) <= {"layer"}
    assert torch.equal(traced(X), module(X))


NORMS = {
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "older weight_norm": nn.utils.weight_norm,
    "older spectral_norm": nn.utils.spectral_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_normed_layer_becomes_plain(norm: Any) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(norm(nn.Conv2d(4, 3, 3)), nn.Flatten(), norm(nn.Linear(108, 2))).eval()
    expected, names = module(X), list(module.state_dict())
    traced = trace_module(module, example=X)
    assert sorted(traced.state_dict()) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert torch.equal(traced(X), expected)
    assert list(module.state_dict()) == names
    assert torch.equal(module(X), expected)
    quantized = qat_lib.torch.quantize_model(module, custom_qdq_cases="auto", example_input=X)
    assert type(quantized.get_submodule("2")).__name__ == "QuantLinear"
    quantized(X).sum().backward()
    assert quantized.get_parameter("0.weight").grad is not None


@pytest.mark.parametrize("norm", list(NORMS.values())[:2], ids=list(NORMS)[:2])
def test_normed_layer_with_a_forward_of_its_own_becomes_plain(norm: Any) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(norm(PaddedConv(4, 8, 2, groups=2))).eval()
    expected = module(X)
    traced = trace_module(module, example=X)
    called = [str(node.target) for node in traced.graph.find_nodes(op="call_module")]
    assert [type(traced.get_submodule(path)) for path in called] == [nn.Conv2d]
    assert torch.equal(traced(X), expected)
    assert torch.equal(module(X), expected)


def test_overridden_forward_keeps_its_path() -> None:
    module = nn.Sequential(PaddedConv(4, 8, 2, groups=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    expected = module(X)
    names = list(module.state_dict())
    traced = trace_module(module)
    assert modules(traced)["0"] == "Conv2d"
    assert sorted(traced.state_dict()) == sorted(names)
    assert list(module.state_dict()) == names
    assert type(module[0]) is PaddedConv
    assert torch.equal(traced(X), expected)
    quantized = qat_lib.torch.quantize_model(module, custom_qdq_cases="auto", example_input=X)
    assert type(quantized.get_submodule("0")).__name__ == "QuantConv2d"


def test_module_trains_in_the_mode_of_the_model() -> None:
    module = Calls(lambda m, x: functional.linear(x, m.w), w=(3, 8)).eval()
    traced = trace_module(module)
    assert not traced.w.training
    traced(X).sum().backward()
    assert module.w.grad is not None


class Tied(nn.Module):
    """An embedding whose weight also is that of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.table(x), self.table.weight)


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (Calls(lambda m, x: functional.linear(functional.linear(x, m.w), m.w), w=(8, 8)), X),
        (Calls(lambda m, x: functional.linear(x, m.w / x.norm()), w=(3, 8)), X),
        (Calls(lambda m, x: functional.linear(x, torch.ones(3, 8) * 2), w=(3, 8)), X),
        (Calls(lambda m, x: functional.linear(x, x[0, 0]), w=(3, 8)), X),
        (Calls(lambda m, x: functional.linear(x, m.w), w=(8,)), X),
        (Tied(), torch.tensor([[0, 3], [1, 4]])),
        (Calls(lambda m, x: m.w @ x, w=(3, 8)), X),
        (Calls(lambda m, x: x @ m.w, w=(4, 8, 3)), X),
        (Calls(lambda m, x: x @ m.w, w=(8,)), X),
        (Calls(lambda m, x: torch.addmm(m.b, x[0, 0], m.w, beta=2), w=(8, 3), b=(3,)), X),
        (Calls(lambda m, x: torch.addmm(m.b, x[0, 0], m.w), w=(8, 3), b=(8, 3)), X),
    ],
    ids=[
        *("shared", "computed", "constant", "input", "vector", "tied"),
        *("first", "batches", "product", "scaled", "matrix"),
    ],
)
def test_other_weights_remain_functions(module: nn.Module, x: torch.Tensor) -> None:
    expected, names = module(x), list(module.state_dict())
    traced = trace_module(module)
    assert set(modules(traced)) <= {"table"}
    assert list(module.state_dict()) == names
    assert torch.equal(traced(x), expected)


def test_two_weights_in_one_container_get_their_own_modules() -> None:
    module = nn.Sequential(
        Calls(
            lambda m, x: functional.linear(functional.linear(x, m.weight), m.second),
            weight=(6, 8), second=(3, 6),
        )
    )  # fmt: skip
    traced = trace_module(module)
    assert modules(traced) == {"0": "Module", "0.weight": "Linear", "0.second": "Linear"}
    assert torch.equal(traced(X), module(X))


def test_functions_run_in_int8(tmp_path: Path) -> None:
    module = nn.Sequential(
        PaddedConv(4, 8, 2), nn.ReLU(), Calls(lambda m, x: functional.linear(x, m.w), w=(3, 8))
    ).eval()
    quantized = qat_lib.torch.quantize_model(module, custom_qdq_cases="auto", example_input=X)
    qat_lib.torch.calibrate(quantized, [X])
    path = tmp_path / "model.onnx"
    qat_lib.torch.export_onnx(quantized, path, example_input=X)
    report = qat_lib.analyze_onnx(path)
    assert report.int8_layers == len(report.layers) == 2
