"""run_lockstep: both forms of a PyTorch model, node by node."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import qat_lib.torch
from qat_lib.errors import CalibrationError
from qat_lib.torch.graph import ModuleGraph
from qat_lib.torch.lockstep import read_samples, run_lockstep


class Odd(nn.Module):
    """A size, a constant, an in-place addition and a split on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(4, 2)
        self.register_buffer("offset", torch.ones(6))

    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        samples = x.size(0)
        x = x.add_(self.offset) + y
        left, right = self.first(x).chunk(2, dim=1)
        return self.second((left * scale - right).reshape(samples, -1))


def quantized() -> tuple[Any, list[torch.Tensor]]:
    torch.manual_seed(0)
    data = [torch.randn(5, 6), torch.randn(5, 6)]
    model = qat_lib.torch.quantize_model(Odd().eval())
    qat_lib.torch.calibrate(model, [[part.clone() for part in data]])
    return model, data


def test_run_lockstep_matches_both_models() -> None:
    model, data = quantized()
    before = [part.clone() for part in data]
    graph = ModuleGraph(model)
    batches = read_samples(graph, data, samples=5, batch_size=3)
    seen: dict[str, Any] = {}
    run_lockstep(graph, batches, lambda call, pairs: seen.update({call.layer: pairs}))
    (pair,) = seen["second"]
    torch.testing.assert_close(data, before, rtol=0, atol=0)
    with torch.no_grad():
        in_integers = model(*(part.clone() for part in data))
        for quantizer in qat_lib.torch.model_quantizers(model).values():
            quantizer.disable()
        in_float = model(*(part.clone() for part in data))
    torch.testing.assert_close(torch.cat(list(pair.quantized)), in_integers)
    torch.testing.assert_close(torch.cat(list(pair.float)), in_float)
    assert not torch.allclose(in_float, in_integers, atol=1e-5)


def test_read_samples_takes_inputs_by_name() -> None:
    model, (x, y) = quantized()
    graph = ModuleGraph(model)
    (batch,) = read_samples(graph, {"y": y, "x": x}, samples=2, batch_size=4)
    torch.testing.assert_close(batch, [x[:2], y[:2]])
    with pytest.raises(CalibrationError, match="lacks 'x'"):
        read_samples(graph, {"y": y}, samples=2, batch_size=4)


def test_read_samples_reads_data_once() -> None:
    model, (x, y) = quantized()
    parts = iter([[x[:1], y[:1]], [x[1:2], y[1:2]]])
    found = read_samples(ModuleGraph(model), parts, samples=2, batch_size=4)
    torch.testing.assert_close(found, [[x[:1], y[:1]], [x[1:2], y[1:2]]])


def test_read_samples_fits_the_memory() -> None:
    model, _ = quantized()
    data = [torch.zeros(9, 6), torch.zeros(9, 6)]
    (batch,) = read_samples(ModuleGraph(model), data, samples=9, batch_size=9, memory=1)
    assert len(batch[0]) == 4
