"""Operations that work in place: later readers read the changed value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from qat_lib.errors import UnsupportedModelError
from qat_lib.torch import calibrate, quantize_model
from qat_lib.torch.in_place import changes_its_input, work_out_of_place
from qat_lib.torch.tracing import trace_module


class Network(nn.Module):
    """A value with several readers, changed before the last.

    One of them changes it.
    """

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.relu = nn.ReLU(inplace=True)
        self.change = change

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        before = y * 3
        changed = self.change(self, y)
        return before + changed + self.conv(y)


def add_in_place(_: Any, y: Any) -> Any:
    y += 1
    return y


CHANGES = {
    "module": lambda network, y: network.relu(y),
    "method": lambda _, y: y.mul_(2),
    "function": lambda _, y: F.relu_(y),
    "argument": lambda _, y: F.relu(y, inplace=True),
    "operator": add_in_place,
    "torch": lambda _, y: torch.sigmoid_(y),
}


@pytest.mark.parametrize("change", CHANGES)
def test_readers_read_what_they_would(change: str) -> None:
    torch.manual_seed(0)
    network = Network(CHANGES[change])
    quantized = quantize_model(network, "partial", _none())
    x = torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        assert torch.equal(quantized(x), network(x))


def _none() -> Any:
    from qat_lib import QuantizationSpec

    return QuantizationSpec().add("conv", quantize_input=False, quantize_weight=False)


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_works_in_place_in_the_end(change: str) -> None:
    traced = trace_module(Network(CHANGES[change]))
    work_out_of_place(traced)
    nodes = list(traced.graph.nodes)
    assert not [node.name for node in nodes if changes_its_input(traced, node)]


class Viewed(nn.Module):
    """A change of a view, which changes the value behind it, too."""

    def forward(self, x: Any) -> Any:
        x = x * 1
        x[:, :1].add_(5)
        return x * 2


def test_changes_of_views_stay() -> None:
    traced = trace_module(Viewed())
    assert torch.equal(traced(torch.ones(1, 2)), torch.tensor([[12.0, 2.0]]))


class Assigned(nn.Module):
    """Assigns to items of a convolution's output, or of what ``source`` makes of it."""

    def __init__(self, source: Any, later: Any) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)
        self.source, self.later = source, later

    def forward(self, x: Any) -> Any:
        made = self.conv(x)
        y = self.source(made)
        view = y[:, 1:]
        y[:, 0::2] = y[:, 0::2].sigmoid() * 2
        y[:, 1, 0] = 0.5
        return self.head(y) + self.later(made, view)


def _nothing(_made: Any, _view: Any) -> Any:
    return 0


def test_assignment_to_items() -> None:
    torch.manual_seed(0)
    network, x = Assigned(torch.clone, _nothing), torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        assert torch.equal(trace_module(network, example=[x])(x), network(x))
        quantized = quantize_model(network, example_input=x)
        assert type(quantized.head).__name__ == "QuantConv2d"
        calibrate(quantized, [x])
        assert (quantized(x) - network(x)).abs().max() < 0.1


@pytest.mark.parametrize(
    ("source", "later"),
    [
        pytest.param(torch.clone, lambda _, view: view[:, :2], id="a view of it"),
        pytest.param(lambda made: made[:, :], lambda made, _: made[:, :2], id="its base"),
        pytest.param(torch.relu_, lambda made, _: made[:, :2], id="changed in place before"),
        pytest.param(lambda made: made.contiguous(), lambda made, _: made[:, :2], id="no copy"),
    ],
)
def test_assignment_with_lost_changes_is_refused(source: Any, later: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="computes other outputs"):
        trace_module(Assigned(source, later), example=[torch.randn(2, 3, 4, 4)])


def test_assignment_without_an_example_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="Give example_input"):
        trace_module(Assigned(torch.clone, _nothing))


def test_assignment_to_a_view_alone_is_kept() -> None:
    network = Assigned(lambda made: made.chunk(1, 1)[0], _nothing)
    x = torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        assert torch.equal(trace_module(network, example=[x])(x), network(x))


class Stateful(nn.Module):
    """Assigns to items of its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x: Any) -> Any:
        self.offset[0] = 1.0
        return x + self.offset


def test_assignment_to_a_parameter_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="a parameter is changed"):
        trace_module(Stateful(), example=[torch.randn(2, 3)])
