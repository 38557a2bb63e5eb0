"""The interface of ``keras_framework`` for PyTorch."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from qat_lib import torch as api

__all__ = ["api"]


def loaders(x: np.ndarray, labels: np.ndarray, size: int) -> dict[str, Any]:
    tensor = torch.from_numpy(x)
    return {
        "tensor": tensor,
        "loader": DataLoader(TensorDataset(tensor), batch_size=size),
        "loader of pairs": DataLoader(
            TensorDataset(tensor, torch.from_numpy(labels)), batch_size=size
        ),
    }


def quantizers(*names: str, **options: Any) -> Any:
    made = [api.TensorQuantizer(api.QuantDescriptor(name=name, **options)) for name in names]
    return nn.Sequential(*made)


class TwoInputs(nn.Module):
    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.qa = api.TensorQuantizer()
        self.qb = self.qa if shared else api.TensorQuantizer()

    def forward(self, a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.qa(a) + scale * self.qb(b)


def two_inputs(form: Any = dict, *, shared: bool = False) -> Any:
    return TwoInputs(shared=shared)


def linear() -> Any:
    return nn.Linear(2, 2)


def samples(x: np.ndarray) -> Any:
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1)))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.biased = nn.Conv2d(16, 16, 3)
        self.logits = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.biased(torch.relu(self.bn(self.conv(x)))))
        return self.logits(x.mean((2, 3)))


def network() -> Any:
    torch.manual_seed(1)
    return Network().eval()


def pooled_identity() -> Any:
    conv = nn.Conv2d(1, 1, 1)
    nn.init.ones_(conv.weight)
    nn.init.zeros_(conv.bias)
    return nn.Sequential(OrderedDict(conv=conv, pool=nn.AdaptiveAvgPool2d(1))).eval()


class OddConvolutions(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bare(self.shared(self.shared(x)))


def odd_convolutions() -> Any:
    parts = {"shared": nn.Conv2d(3, 3, 1), "bare": nn.Conv2d(3, 4, 1, bias=False)}
    return OddConvolutions(OrderedDict(parts)).eval()


def quantized_name(layer: str) -> str:
    return layer


def predict(model: Any, x: Any) -> np.ndarray:
    with torch.no_grad():
        return model(torch.as_tensor(x)).numpy()


def state(model: Any) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def kind(name: str) -> str:
    return name.split(".")[-1].removeprefix("running_")


def array(weight: Any) -> np.ndarray:
    return weight.detach().numpy().copy()


def assign(weight: Any, value: np.ndarray) -> None:
    with torch.no_grad():
        weight.copy_(torch.from_numpy(value))


def export(model: Any, path: Path, x: Any) -> None:
    api.export_onnx(model, path, example_input=x)
