"""Quantization, training and export of PyTorch modules on a GPU (opt-in: ``-m gpu``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import qat_lib
import qat_lib.torch
from qat_lib.torch.models import resnet20_cifar10
from qat_lib.torch.training import WeightOscillation, reestimate_batch_norm

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
X = np.random.default_rng(0).normal(size=(64, 3, 32, 32)).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def network(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return resnet20_cifar10().to(device).eval()


def quantized(device: str, policy: str) -> torch.nn.Module:
    module, x = network(device), torch.from_numpy(X).to(device)
    plan = qat_lib.torch.plan_quantization(module, example_input=x[:2]).with_range_policy(policy)
    module = qat_lib.torch.apply_plan(module, plan, example_input=x[:2])
    qat_lib.torch.calibrate(module, [x], freeze=policy == "frozen")
    return module


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the root mean square of the difference over the spread."""
    difference = found.cpu() - expected.cpu()
    return float(difference.square().mean().sqrt() / expected.std())


@torch.no_grad()
def test_recipe_gives_the_same_module_as_on_the_cpu() -> None:
    recipe = qat_lib.PtqRecipe(backend="tensorrt")
    x = torch.from_numpy(X)
    expected = recipe.quantize(network("cpu"), X)(x)
    found = recipe.quantize(network(DEVICE), X)(x.to(DEVICE))
    assert found.device.type == DEVICE
    assert distance(found, expected) < 0.05


@pytest.mark.parametrize("policy", ["frozen", "ema", "learned"])
def test_training(policy: str) -> None:
    module = quantized(DEVICE, policy).train()
    x, y = torch.from_numpy(X).to(DEVICE), torch.arange(64, device=DEVICE) % 10
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)
    oscillation = WeightOscillation(module)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        oscillation.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    reestimate_batch_norm(module, [x])
    module.eval()
    with torch.no_grad():
        answers = module(x)
        with qat_lib.torch.folded_weights(module):
            assert distance(module(x), answers) < 1e-3


def test_export_and_saved_state(tmp_path: Path) -> None:
    module = quantized(DEVICE, "learned").eval()
    report = qat_lib.torch.export_onnx(
        module, tmp_path / "m.onnx", example_input=torch.from_numpy(X[:2]).to(DEVICE)
    )
    assert report.path.stat().st_size > 0
    torch.save(module.state_dict(), tmp_path / "state.pt")
    other = quantized("cpu", "learned").eval()
    other.load_state_dict(torch.load(tmp_path / "state.pt", map_location="cpu", weights_only=True))
    x = torch.from_numpy(X)
    with torch.no_grad():
        assert distance(module(x.to(DEVICE)), other(x)) < 0.05
