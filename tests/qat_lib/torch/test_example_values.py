"""Modules that torch.fx traces only with the sizes of an example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import einops
import numpy as np
import pytest
import torch
from einops.layers.torch import Rearrange
from torch import nn

import qat_lib
import qat_lib.torch
from qat_lib.errors import UnsupportedModelError
from qat_lib.torch.tracing import trace_module

EXAMPLE = torch.zeros(2, 3, 8, 8)


class Detecting(nn.Module):
    """As Ultralytics' detectors: lists of halves, and places that are kept for the last size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Conv2d(12, 2, 1)
        self.size: Any = None
        self.places = torch.empty(0)

    def forward(self, x: Any) -> Any:
        halves = list(torch.relu(self.stem(x)).chunk(2, 1))
        halves.append(torch.relu(self.block(halves[-1])))
        x = self.head(torch.cat(halves, 1))
        if self.size != x.shape:
            self.size, self.places = x.shape, torch.arange(x.shape[-1])
        return x.sum(2) + self.places


class Counting(nn.Module):
    """Loops over a size, and asks for lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        if len(x.shape) != 4 or x.device.type == "none":
            return x
        return torch.stack([x[:, i] * float(i + 1) for i in range(int(x.shape[1]))])


class Attending(nn.Module):
    """As Hugging Face's models: numbers of a data type, sizes as tensors, and kinds of arguments."""

    def forward(self, x: Any) -> Any:
        x = x if torch.is_tensor(x) else torch.tensor([x])
        scores = x / torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float))
        return scores.masked_fill(x < 0, torch.finfo(x.dtype).min).softmax(-1)


class Rearranging(nn.Module):
    """As vit-pytorch's networks: einops as functions and as a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
        self.inner = nn.Linear(48, 6)

    def forward(self, x: Any) -> Any:
        heads = einops.rearrange(self.inner(self.patches(x)), "b n (h d) -> b h n d", h=2)
        means = einops.reduce(heads, "b h n d -> b h d", "mean")
        packed, shapes = einops.pack([heads[:, 0], heads[:, 1]], "b * d")
        return torch.cat([means, *einops.unpack(packed, shapes, "b * d")], 1)


class Asking(nn.Module):
    """As x-transformers and pytorch-tabnet: asks for the kind of a value, and computes with sizes."""

    def forward(self, x: Any) -> Any:
        x = x() if callable(x) else x
        steps = [1] * x.dim()
        steps[1] = int(np.ceil(x.shape[1] / 2)) + 1
        return x * torch.ones(*steps) + {3: 1.0, 4: 2.0}[x.ndim]


class Windowing(nn.Module):
    """As SwinIR: the batch size as a number, a multiple of it, and a constant on the input's device."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.ones(1, 3, 1, 1)

    def forward(self, x: Any) -> Any:
        self.mean = self.mean.type_as(x)
        windows = (x - self.mean).reshape(int(x.shape[0]) * 4, 3, 4, 4)
        samples = int(windows.shape[0] / 4)
        return windows.view(samples, -1)[:samples]


@pytest.mark.parametrize(
    "module", [Detecting(), Counting(), Attending(), Rearranging(), Asking(), Windowing()]
)
def test_modules_that_need_an_example(module: nn.Module) -> None:
    with pytest.raises(UnsupportedModelError, match="give example_input"):
        trace_module(module)
    traced = trace_module(module, example=EXAMPLE)
    x = torch.randn(5, 3, 8, 8)
    assert torch.equal(traced(x), module(x))


def snake(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    return x + (alpha * x).sin().pow(2) / alpha


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
def test_modules_with_scripted_functions_stay_whole() -> None:
    scripted = torch.jit.script(snake)

    class Snake(nn.Module):
        """As the activation of DAC."""

        def __init__(self) -> None:
            super().__init__()
            self.alpha = nn.Parameter(torch.full((1, 4, 1, 1), 2.0))

        def forward(self, x: Any) -> Any:
            return scripted(x, self.alpha)

    module = nn.Sequential(nn.Conv2d(3, 4, 3), Snake(), nn.Conv2d(4, 2, 1)).eval()
    traced = trace_module(module, example=EXAMPLE)
    assert [str(node.target) for node in traced.graph.find_nodes(op="call_module")] == list("012")
    x = torch.randn(5, 3, 8, 8)
    assert torch.equal(traced(x), module(x))


def test_constants_that_do_not_follow_the_batch_stay() -> None:
    class Squaring(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * int(x.shape[0]) ** 2

    traced = trace_module(Squaring(), example=EXAMPLE)
    assert torch.equal(traced(EXAMPLE + 1), 4 * (EXAMPLE + 1))


def test_calls_with_unknown_arguments_raise_in_the_callers_code() -> None:
    class Retrying(nn.Module):
        """As speechbrain's networks."""

        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x: Any) -> Any:
            try:
                return self.act(x, lengths=None)
            except TypeError:
                return self.act(x)

    x = torch.randn(5, 3)
    assert torch.equal(trace_module(Retrying())(x), x.relu())


class Noisy(nn.Module):
    """Changes its input in place, and adds noise."""

    def forward(self, x: Any) -> Any:
        x *= 2
        return (x if len(x) > 1 else -x) + torch.randn_like(x)


def test_comparisons_start_from_the_same_input_and_noise() -> None:
    traced = trace_module(Noisy(), example=EXAMPLE)
    assert "randn_like" in traced.code
    assert not EXAMPLE.any()


def test_traced_places_follow_the_size_of_the_input() -> None:
    module = Detecting()
    traced = trace_module(module, example=EXAMPLE)
    x = torch.randn(2, 3, 8, 6)
    assert torch.equal(traced(x), module(x))


def test_tracing_leaves_the_attributes_of_the_module() -> None:
    module = Detecting()
    module.register_buffer("seen", torch.zeros(1))
    trace_module(module, example=EXAMPLE)
    assert module.size is None
    assert module.places.numel() == 0
    assert set(module.state_dict()) == {"seen", *Detecting().state_dict()}


class Caching(nn.Module):
    """Keeps values in a dict, and hooks of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)
        self.cache: dict[str, Any] = {}

    def forward(self, x: Any) -> Any:
        self.conv.register_forward_hook(lambda *_: None)
        self.cache.setdefault("bias", x.mean())
        return self.conv(x) + self.cache["bias"]


def test_tracing_leaves_the_entries_of_attributes() -> None:
    module = Caching()
    trace_module(module)
    assert module.cache == {}
    assert not module.conv._forward_hooks


class Deciding(nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


def test_branches_on_numbers_are_refused_with_an_example() -> None:
    with pytest.raises(UnsupportedModelError, match="depends on numbers"):
        trace_module(Deciding(), example=EXAMPLE)


class Training(Detecting):
    """Returns the parts in training, as Ultralytics' detectors do."""

    def forward(self, x: Any) -> Any:
        return list(torch.relu(self.stem(x)).chunk(2, 1)) if self.training else super().forward(x)


@pytest.mark.parametrize("training", [False, True])
def test_modules_with_other_outputs_in_training(training: bool) -> None:
    module = Training().train(training)
    traced = trace_module(module, example=EXAMPLE)
    x = torch.randn(5, 3, 8, 8)
    if training:
        assert all(map(torch.equal, traced(x), module(x)))
    else:
        assert torch.equal(traced(x), module(x))


class Recording(nn.Module):
    """Takes another path for a tensor than for a traced value."""

    def forward(self, x: Any) -> Any:
        x = x + 1 if isinstance(x, torch.Tensor) else x
        return x if x.shape[0] > 1 else -x


def test_a_trace_with_other_outputs_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="computes other outputs for example_input"):
        trace_module(Recording(), example=EXAMPLE)


def test_quantized_detector_reaches_onnx(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, data = Detecting().eval(), torch.randn(16, 3, 8, 8)
    quantized = qat_lib.torch.quantize_model(
        model, custom_qdq_cases="auto", example_input=EXAMPLE
    ).eval()
    qat_lib.torch.calibrate(quantized, data)
    assert len(qat_lib.torch.model_quantizers(quantized)) == 5
    error = (quantized(data) - model(data)).abs().max()
    assert 0 < error < 0.1 * model(data).abs().max()
    qat_lib.torch.export_onnx(quantized, tmp_path / "net.onnx", example_input=data)
    assert qat_lib.torch.check_parity(quantized, tmp_path / "net.onnx", data.numpy()).passed


def test_recipe_takes_the_example_from_the_data() -> None:
    torch.manual_seed(0)
    model, data = Detecting().eval(), torch.randn(16, 3, 8, 8)
    quantized = qat_lib.PtqRecipe(backend="openvino").quantize(model, data.numpy())
    error = (quantized.eval()(data) - model(data)).abs().mean()
    assert 0 < error < 0.05 * model(data).abs().mean()
