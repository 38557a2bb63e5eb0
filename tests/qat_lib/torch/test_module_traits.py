"""PyTorch traits: roles of the table, corrected by settings.

They are those of modules and functions.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from qat_lib.graph.roles import Role
from qat_lib.graph.traits import Traits
from qat_lib.torch.graph import ModuleGraph
from qat_lib.torch.module_traits import is_known, known_names, module_traits
from qat_lib.torch.planner import module_graph


class Calling(nn.Module):
    """Calls a function on its input, alone and after a convolution.

    The second call reads the convolution's result and the input.
    """

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(4, 4, 1, 1))

    def forward(self, x: Any) -> Any:
        return self.function(x, self.weight)


def traits_of(function: Any, example: torch.Tensor | None = None) -> Traits:
    """Return the traits of the last call of ``function(x, weight)``."""
    return module_graph(Calling(function), example).calls[-1].traits


@pytest.mark.parametrize(
    ("module", "role", "holds"),
    [
        (nn.Dropout(), "identity", True),
        (nn.Dropout(), "range preserving", True),
        (nn.ReLU(), "range preserving", True),
        (nn.ReLU6(), "range preserving", False),
        (nn.ReLU6(), "non-negative", True),
        (nn.Hardtanh(0.0, 4.0), "non-negative", True),
        (nn.Hardtanh(-1.0, 4.0), "non-negative", False),
        (nn.LeakyReLU(), "non-negative", False),
        (nn.Upsample(scale_factor=2), "range preserving", True),
        (nn.Upsample(scale_factor=2, mode="nearest-exact"), "range preserving", True),
        (nn.Upsample(scale_factor=2, mode="bilinear"), "range preserving", False),
        (nn.Upsample(scale_factor=2, mode="bilinear"), "sign preserving", True),
        (nn.Upsample(scale_factor=2, mode="bicubic"), "sign preserving", False),
        (nn.ZeroPad2d(1), "range preserving", True),
        (nn.ReflectionPad2d(1), "range preserving", True),
        (nn.ConstantPad2d(1, 0.0), "range preserving", True),
        (nn.ConstantPad2d(1, 3.0), "range preserving", False),
        (nn.MaxPool2d(4), "wide maximum", True),
        (nn.MaxPool2d(3), "wide maximum", False),
        (nn.MaxPool2d((2, 8)), "wide maximum", True),
        (nn.MaxPool1d(4), "wide maximum", False),
        (nn.MaxPool3d(3), "wide maximum", True),
        (nn.AdaptiveMaxPool2d(1), "wide maximum", True),
        (nn.AvgPool2d(2), "sign preserving", True),
        (nn.Conv2d(4, 4, 3, groups=4), "depthwise", True),
        (nn.Conv2d(4, 8, 3, groups=4), "depthwise", True),
        (nn.Conv2d(4, 8, 3, groups=2), "depthwise", False),
        (nn.GroupNorm(2, 4), "depthwise", False),
        (nn.InstanceNorm2d(4), "normalization", True),
        (nn.MultiheadAttention(4, 1), "attention", True),
        (nn.PReLU(), "activation layer", True),
    ],
)
def test_roles_follow_the_settings(module: nn.Module, role: Role, holds: bool) -> None:
    assert (role in module_traits(module, 1).roles) == holds


@pytest.mark.parametrize(
    ("function", "role", "holds"),
    [
        (lambda x, _: torch.relu(x), "range preserving", True),
        (lambda x, _: x.relu(), "range preserving", True),
        (lambda x, _: x.clamp(min=0), "range preserving", True),
        (lambda x, _: torch.clamp(x, 0, 6), "range preserving", False),
        (lambda x, _: torch.clamp(x, 0, 6), "non-negative", True),
        (lambda x, _: x.clamp(-1, 1), "non-negative", False),
        (lambda x, _: F.hardtanh(x), "activation", False),
        (lambda x, _: F.interpolate(x, scale_factor=2), "range preserving", True),
        (lambda x, _: F.interpolate(x, scale_factor=2, mode="bilinear"), "range preserving", False),
        (lambda x, _: F.pad(x, (1, 1)), "range preserving", True),
        (lambda x, _: F.pad(x, (1, 1), "constant", 2.0), "range preserving", False),
        (lambda x, _: F.pad(x, (1, 1), "reflect"), "range preserving", True),
        (lambda x, _: x[:, 1:], "range preserving", True),
        (lambda x, _: x[x > 0], "range preserving", False),
        (lambda x, _: F.max_pool2d(x, 4), "wide maximum", True),
        (lambda x, _: F.max_pool2d(x, kernel_size=(2, 2)), "wide maximum", False),
        (lambda x, _: F.max_pool2d(x, (x.size(2), x.size(3))), "wide maximum", True),
        (lambda x, _: F.max_pool2d(x, x.shape[2:]), "wide maximum", True),
        (lambda x, _: x.T, "range preserving", True),
        (lambda x, w: x * w, "affine", True),
        (lambda x, _: x - 1, "affine", True),
        (lambda x, _: x + torch.sigmoid(x), "affine", False),
        (lambda x, _: torch.max(x, x * 2), "merge", True),
        (lambda x, _: torch.max(x), "merge", False),
        (lambda x, _: torch.add(x, x, alpha=2), "merge", False),
        (lambda x, _: F.elu(x, alpha=0.5), "epilogue", True),
        (lambda x, _: x.softmax(-1), "non-negative", True),
        (lambda x, w: F.conv2d(x, w * x.mean()), "weighted", True),
    ],
)
def test_roles_of_functions_follow_the_arguments(function: Any, role: Role, holds: bool) -> None:
    found = traits_of(function)
    assert (role in found.roles) == holds
    assert not found.is_layer


@pytest.mark.parametrize(
    ("module", "activation"),
    [
        (nn.ReLU(), "relu"),
        (nn.ReLU6(), "relu6"),
        (nn.Hardtanh(0.0, 6.0), "relu6"),
        (nn.SiLU(), "silu"),
        (nn.Hardswish(), "hard_silu"),
        (nn.Hardsigmoid(), "hard_sigmoid"),
        (nn.GELU(), "gelu"),
        (nn.LeakyReLU(), "leaky_relu"),
        (nn.ELU(), "elu"),
        (nn.Mish(), "mish"),
        (nn.Softplus(), "softplus"),
        (nn.Tanh(), "tanh"),
        (nn.Hardtanh(), None),
        (nn.PReLU(), None),
        (nn.Softmax(-1), None),
    ],
)
def test_activations_have_their_keras_names(module: nn.Module, activation: str | None) -> None:
    assert module_traits(module, 1).activation == activation


@pytest.mark.parametrize(
    ("dims", "shape", "is_pool"),
    [
        ((2, 3), (1, 4, 8, 8), True),
        ((-1, -2), (1, 4, 8, 8), True),
        (2, (1, 4, 8), True),
        ((2, 3, 4), (1, 4, 8, 8, 8), True),
        (1, (1, 4, 8), False),
        (3, (1, 4, 8, 8), False),
        ((2, 3), (1, 4, 8, 8, 8), False),
        ((2, 3), None, True),
        (2, None, False),
        (None, (1, 4, 8, 8), False),
    ],
)
def test_mean_over_image_is_pool(dims: Any, shape: tuple[int, ...] | None, is_pool: bool) -> None:
    example = None if shape is None else torch.zeros(shape)
    found = traits_of(lambda x, _: x.mean() if dims is None else x.mean(dim=dims), example)
    assert ("average pool" in found.roles) == is_pool
    assert (found.support is not None) == is_pool


@pytest.mark.parametrize(
    ("module", "weights", "is_on"),
    [
        (nn.Conv2d(4, 8, 3), {"weight": (0,)}, True),
        (nn.Linear(4, 8), {"weight": (0,)}, True),
        (nn.ConvTranspose2d(4, 8, 3), {"weight": (1,)}, False),
        (nn.AvgPool2d(2), {}, True),
        (nn.MaxPool2d(2), {}, False),
        (nn.BatchNorm2d(4), {}, False),
        (nn.LayerNorm(4), {}, False),
    ],
)
def test_support_is_that_of_the_default_table(
    module: nn.Module, weights: dict[str, Any], is_on: bool
) -> None:
    found = module_traits(module, 1)
    assert found.support is not None
    assert (found.weights(), found.support.quantize_input) == (weights, is_on)


@pytest.mark.parametrize(
    ("module", "is_on"),
    [
        (nn.ConvTranspose2d(4, 8, 2, stride=2), True),
        (nn.ConvTranspose1d(4, 8, 4, stride=2, padding=1), True),
        (nn.ConvTranspose2d(4, 8, 2, stride=2, groups=2), False),
        (nn.ConvTranspose2d(4, 8, (2, 5)), False),
        (nn.ConvTranspose3d(4, 8, 4, stride=4), False),
        (nn.ConvTranspose2d(4, 8, 3, dilation=2), False),
    ],
)
def test_transposed_convolutions_are_on_for_vnni(module: nn.Module, is_on: bool) -> None:
    support = module_traits(module, 1).support
    assert support is not None
    assert (support.is_default("vnni"), support.is_default("avx2")) == (is_on, False)


@pytest.mark.parametrize(
    ("module", "obstacle"),
    [
        (nn.LSTM(4, 4), "its gates are one kernel"),
        (nn.GRUCell(4, 4), "its gates are one kernel"),
        (nn.MultiheadAttention(4, 1), "its projections and products are one function"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "remove the parametrization"),
        (nn.LazyLinear(4), "call the model once"),
    ],
)
def test_obstacles_are_named(module: nn.Module, obstacle: str) -> None:
    found = module_traits(module, 1)
    assert obstacle in found.obstacle
    assert found.support is None


def test_functions_with_computed_weights_stay_float() -> None:
    found = traits_of(lambda x, w: F.conv2d(x, w * x.mean()))
    assert found.obstacle == "its weight is computed or shared; give it a parameter of its own"
    assert (found.support, found.is_weighted) == (None, True)


def test_weighted_modules_inside_are_named() -> None:
    found = module_traits(nn.TransformerEncoderLayer(4, 1, 8, batch_first=True), 1)
    assert found.inside == ("self_attn.out_proj", "linear1", "linear2")
    assert module_traits(nn.ReLU(), 1).inside == ()


def test_names_of_the_table() -> None:
    assert is_known("Conv2d")
    assert is_known("add")
    assert not is_known("Conv2D")
    assert {"Linear", "cat", "SyncBatchNorm"} <= set(known_names())


def test_kind_is_that_of_the_keras_layer() -> None:
    kinds = {nn.BatchNorm1d(4): "BatchNormalization", nn.MaxPool2d(2): "MaxPooling2D"}
    for module, kind in kinds.items():
        assert module_traits(module, 1).kind == kind
    assert traits_of(lambda x, _: torch.cat([x, x])).kind == "Concatenate"
    assert isinstance(module_graph(nn.Sequential(nn.ReLU())), ModuleGraph)
