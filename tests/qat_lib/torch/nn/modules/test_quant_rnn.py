"""Quantized LSTMs beside PyTorch's own, and their steps beside NumPy's quantization."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import quantization_oracle as oracle
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from qat_lib.errors import SpecError
from qat_lib.torch import calibrate, check_parity
from qat_lib.torch import nn as quant_nn
from qat_lib.torch.nn import QuantLSTM, QuantLSTMCell

KINDS = [
    {},
    {"num_layers": 2, "bias": False},
    {"bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bidirectional": True},
]


class Last(nn.Module):
    """The last state of an LSTM over sequences ``(batch, steps, features)``."""

    def __init__(self, *args: int) -> None:
        super().__init__()
        self.lstm = QuantLSTM(*args, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0][:, -1]


def pair(**options: Any) -> tuple[nn.LSTM, QuantLSTM]:
    """Return PyTorch's LSTM and the quantized one, quantizers off.

    Both have the same parameters.
    """
    torch.manual_seed(2)
    original, quantized = nn.LSTM(5, 4, **options), QuantLSTM(5, 4, **options)
    quantized.load_state_dict(original.state_dict())
    for module in quantized.modules():
        if isinstance(module, quant_nn.TensorQuantizer):
            module.disable()
    return original, quantized


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("given", [False, True])
def test_disabled_lstm_is_the_original(options: dict[str, Any], given: bool) -> None:
    original, quantized = pair(**options)
    x, layers = torch.randn(3, 3, 5), len(quantized._weight_quantizers)
    hx = (torch.randn(layers, 3, 4), torch.randn(layers, 3, 4)) if given else None
    same(quantized(x, hx), original(x, hx))


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_disabled_lstm_takes_one_sequence(options: dict[str, Any]) -> None:
    original, quantized = pair(**options)
    x, layers = torch.randn(6, 5), len(quantized._weight_quantizers)
    hx = (torch.randn(layers, 4), torch.randn(layers, 4))
    same(quantized(x), original(x))
    same(quantized(x, hx), original(x, hx))


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("given", [False, True])
def test_disabled_lstm_takes_packed_sequences(options: dict[str, Any], given: bool) -> None:
    original, quantized = pair(**options)
    packed = pack_sequence([torch.randn(n, 5) for n in (2, 5, 1, 4)], enforce_sorted=False)
    layers = len(quantized._weight_quantizers)
    hx = (torch.randn(layers, 4, 4), torch.randn(layers, 4, 4)) if given else None
    found, states = quantized(packed, hx)
    expected, expected_states = original(packed, hx)
    same(pad_packed_sequence(found), pad_packed_sequence(expected))
    same(states, expected_states)


def test_lstm_checks_the_state_s_shape() -> None:
    with pytest.raises(RuntimeError, match="Expected hidden"):
        QuantLSTM(5, 4)(torch.randn(3, 2, 5), (torch.zeros(1, 3, 4), torch.zeros(1, 3, 4)))


def cell_by_numpy(cell: QuantLSTMCell, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> Any:
    """Return the next state and memory, of operands that NumPy quantizes."""
    weight = np.concatenate([cell.weight_ih.detach(), cell.weight_hh.detach()], 1)
    weight = oracle.fake_quantize(weight, oracle.range_of(weight, (0,)), narrow_range=True)
    joined = oracle.fake_quantize(np.concatenate([x, h], 1), 1.5)
    bias = (cell.bias_ih + cell.bias_hh).detach().numpy()
    i, f, g, o = np.split(joined.astype(np.float64) @ weight.T + bias, 4, axis=1)
    memory = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
    return np.tanh(memory) / (1 + np.exp(-o)), memory


def test_lstm_cell_equals_the_oracle() -> None:
    torch.manual_seed(3)
    cell = QuantLSTMCell(5, 4)
    cell.input_quantizer.amax = 1.5
    x, h, c = torch.randn(3, 5), torch.randn(3, 4), torch.randn(3, 4)
    found = cell(x, (h, c))
    expected = cell_by_numpy(cell, x.numpy(), h.numpy(), c.numpy())
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-5, atol=1e-6)


def test_lstm_cell_starts_at_zero() -> None:
    original, cell = nn.LSTMCell(5, 4, bias=False), QuantLSTMCell(5, 4, bias=False)
    cell.load_state_dict(original.state_dict())
    cell.input_quantizer.disable()
    cell.weight_quantizer.disable()
    for x in (torch.randn(3, 5), torch.randn(5)):
        same(cell(x), original(x))


def test_lstm_steps_are_those_of_the_cell() -> None:
    torch.manual_seed(4)
    lstm, cell = QuantLSTM(5, 4), QuantLSTMCell(5, 4)
    for name, parameter in cell.named_parameters():
        parameter.data = getattr(lstm, f"{name}_l0").data
    lstm._input_quantizers[0].amax = cell.input_quantizer.amax = 1.5
    x = torch.randn(6, 2, 5)
    state = (torch.zeros(2, 4), torch.zeros(2, 4))
    outputs = []
    for step in x:
        state = cell(step, state)
        outputs.append(state[0])
    same(lstm(x)[0], torch.stack(outputs))


def test_lstm_has_quantizers_per_layer_and_direction() -> None:
    lstm = QuantLSTM(5, 4, num_layers=2, bidirectional=True)
    assert len(lstm._input_quantizers) == len(lstm._weight_quantizers) == 4
    for index, quantizer in enumerate(lstm._weight_quantizers):
        joined = torch.cat(lstm.all_weights[index][:2], 1).detach()
        torch.testing.assert_close(quantizer.amax, joined.abs().amax(1, keepdim=True))
    assert lstm.quantized_weight(quant_nn.TensorQuantizer()) is None


def test_lstm_trains() -> None:
    lstm = QuantLSTM(5, 4, num_layers=2, dropout=0.5)
    torch.manual_seed(0)
    first = lstm(torch.ones(3, 2, 5))[0]
    assert not torch.equal(first, lstm(torch.ones(3, 2, 5))[0])
    first.sum().backward()
    for parameter in lstm.parameters():
        assert parameter.grad is not None
    lstm.eval()
    torch.testing.assert_close(lstm(torch.ones(3, 2, 5)), lstm(torch.ones(3, 2, 5)))


def test_lstm_from_float_shares_the_parameters() -> None:
    original = nn.LSTM(5, 4, bidirectional=True)
    made = QuantLSTM.from_float(original)
    assert made.weight_hh_l0_reverse is original.weight_hh_l0_reverse
    assert made(torch.randn(3, 2, 5))[0].shape == (3, 2, 8)


@pytest.mark.matrix
def test_lstm_exports_pair_for_each_joined_tensor(export: Callable[..., Path]) -> None:
    torch.manual_seed(6)
    lstm, x = Last(5, 4), torch.randn(2, 3, 5)
    calibrate(lstm, x, "max")
    path = export(lstm, x)
    assert check_parity(lstm, path, x.numpy()).largest_difference < 1e-6
    assert sum(node.op_type == "QuantizeLinear" for node in onnx.load(path).graph.node) == 3


def test_lstm_refuses_a_projection() -> None:
    with pytest.raises(SpecError, match=r"no projection\. Received: 2"):
        QuantLSTM(5, 4, proj_size=2)
