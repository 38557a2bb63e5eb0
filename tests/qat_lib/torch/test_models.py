"""Reference networks in PyTorch by the names of a config."""

from __future__ import annotations

import pytest
import torch

from qat_lib.errors import ConfigError
from qat_lib.models import TORCH_REFERENCE_MODELS, check_reference_name
from qat_lib.torch.models import build_reference_model


@pytest.mark.parametrize("name", TORCH_REFERENCE_MODELS)
def test_each_reference_network_is_built(name: str) -> None:
    module = build_reference_model(name, channels=1, classes=3).eval()
    with torch.no_grad():
        assert module(torch.zeros(2, 1, 32, 32)).shape == (2, 3)


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="'resnet20' is not a reference network of PyTorch"):
        build_reference_model("resnet20")
    with pytest.raises(ConfigError, match=r"model.options do not fit resnet20_cifar10: .*depth"):
        build_reference_model("resnet20_cifar10", depth=3)


def test_reference_names_differ_by_framework() -> None:
    check_reference_name("resnet_digits")
    with pytest.raises(ConfigError, match="'resnet_digits' is not a reference network of PyTorch"):
        check_reference_name("resnet_digits", "torch")
