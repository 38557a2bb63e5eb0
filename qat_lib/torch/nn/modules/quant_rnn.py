"""Quantized LSTM with quantizers on the joined input and state, and on the joined weights.

An engine computes each step as one matrix product of the concatenated input and state with the
concatenated weights of the gates. Therefore each layer and direction has one quantizer for the
joined tensor and one for the joined weight.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from qat_lib.errors import SpecError
from qat_lib.torch import tensor_quant
from qat_lib.torch.nn.modules._utils import QuantMixin, split_descriptors
from qat_lib.torch.tensor_quantizer import TensorQuantizer


def _advance(
    joined: torch.Tensor, memory: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an LSTM's next state and memory from joined, quantized operands."""
    # PyTorch's order of gates: input, forget, cell, output.
    gates = F.linear(joined, weight, bias).chunk(4, -1)
    memory = gates[1].sigmoid() * memory + gates[0].sigmoid() * gates[2].tanh()
    return gates[3].sigmoid() * memory.tanh(), memory


class QuantLSTMCell(QuantMixin, nn.LSTMCell):
    """Quantized ``nn.LSTMCell``.

    The constructor also accepts ``quant_desc_input`` and ``quant_desc_weight``.
    """

    default_quant_desc_weight = tensor_quant.QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW
    weight_ih: Any
    weight_hh: Any
    bias_ih: Any
    bias_hh: Any
    hidden_size: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        descriptors, others = split_descriptors(kwargs)
        super().__init__(*args, **others)
        self._add_quantizers(**descriptors)

    def quantized_weight(self, _quantizer: TensorQuantizer) -> Any:
        """Return the joined weights, ``(4 * hidden_size, input_size + hidden_size)``."""
        return torch.cat([self.weight_ih, self.weight_hh], 1)

    def forward(
        self, input: torch.Tensor, hx: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next state and memory, each ``(batch, hidden_size)`` or ``(hidden_size,)``."""
        if hx is None:
            zeros = input.new_zeros(*input.shape[:-1], self.hidden_size)
            hx = (zeros, zeros)
        joined = self._input_quantizer(torch.cat([input, hx[0]], -1))
        weight = self._weight_quantizer(self.quantized_weight(self._weight_quantizer))
        bias = None if self.bias_ih is None else self.bias_ih + self.bias_hh
        return _advance(joined, hx[1], weight, bias)


class QuantLSTM(QuantMixin, nn.LSTM):
    """Quantized ``nn.LSTM``, computed step by step.

    The constructor also accepts ``quant_desc_input`` and ``quant_desc_weight``.
    ``_input_quantizers`` and ``_weight_quantizers`` have one entry for each layer and direction.

    Raises:
        SpecError: ``proj_size`` is given.
    """

    default_quant_desc_weight = tensor_quant.QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW
    all_weights: Any
    num_layers: int
    hidden_size: int
    bidirectional: bool
    batch_first: bool
    dropout: float
    bias: bool
    training: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        descriptors, others = split_descriptors(kwargs)
        super().__init__(*args, **others)
        self._add_quantizers(**descriptors)

    def init_quantizer(  # type: ignore[override]
        self, quant_desc_input: Any, quant_desc_weight: Any, num_layers: int | None = None
    ) -> None:
        """Create the quantizers of each layer and direction."""
        if self.proj_size:
            raise SpecError(f"A quantized LSTM has no projection. Received: {self.proj_size}.")
        count = self.num_layers * self._directions if num_layers is None else num_layers
        super().init_quantizer(quant_desc_input, quant_desc_weight, count)

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def quantized_weight(self, quantizer: TensorQuantizer) -> Any:
        """Return the joined weights of a quantizer, for one layer and direction."""
        for weights, own in zip(self.all_weights, self._weight_quantizers, strict=True):
            if own is quantizer:
                return torch.cat(weights[:2], 1)
        return None

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return all states, and the last state and memory, as in ``nn.LSTM``."""
        packed = isinstance(input, PackedSequence)
        data = input.data if packed else input
        if packed:
            # A PackedSequence sorts sequences by length; the given states need the same order.
            steps = list(data.split(input.batch_sizes.tolist()))
            hx = self._in_order(hx, input.sorted_indices)
        else:
            data, hx = self._with_batch(data, hx)
            steps = list((data.transpose(0, 1) if self.batch_first else data).unbind(0))
        if hx is None:
            zeros = data.new_zeros(len(self.all_weights), steps[0].shape[0], self.hidden_size)
            hx = (zeros, zeros)
        self.check_forward_args(data, hx, input.batch_sizes if packed else None)
        steps, states = self._run_layers(steps, hx)
        if packed:
            output = PackedSequence(
                torch.cat(steps), input.batch_sizes, input.sorted_indices, input.unsorted_indices
            )
            return output, self._in_order(states, input.unsorted_indices)
        output = torch.stack(steps, 1 if self.batch_first else 0)
        if input.dim() == 3:
            return output, states
        batch = 0 if self.batch_first else 1
        return output.squeeze(batch), (states[0].squeeze(1), states[1].squeeze(1))

    def _with_batch(self, data: Any, hx: Any) -> Any:
        """Add a batch dimension to a sequence without one."""
        if data.dim() != 2:
            return data, hx
        if hx is not None:
            hx = (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
        return data.unsqueeze(0 if self.batch_first else 1), hx

    @staticmethod
    def _in_order(states: Any, indices: Any) -> Any:
        """Return states with their batch in another order."""
        if states is None or indices is None:
            return states
        return states[0].index_select(1, indices), states[1].index_select(1, indices)

    def _run_layers(self, steps: Any, hx: Any) -> Any:
        """Return the outputs of the last layer by step, and the last states of all layers."""
        states, memories = [], []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self._directions):
                index = layer * self._directions + direction
                found, state, memory = self._run(
                    index, steps, (hx[0][index], hx[1][index]), reverse=direction == 1
                )
                outputs.append(found)
                states.append(state)
                memories.append(memory)
            # The next layer reads both directions concatenated.
            steps = [torch.cat(parts, -1) for parts in zip(*outputs, strict=True)]
            if self.dropout and self.training and layer < self.num_layers - 1:
                steps = [F.dropout(step, self.dropout) for step in steps]
        return steps, (torch.stack(states), torch.stack(memories))

    def _run(self, index: int, steps: Any, start: Any, *, reverse: bool) -> Any:
        """Run one layer in one direction.

        A step may have fewer sequences than the state. The others ended, or in reverse have not
        started, and keep their state.
        """
        parts = self.all_weights[index]
        weight = self._weight_quantizers[index](torch.cat(parts[:2], 1))
        bias = parts[2] + parts[3] if self.bias else None
        quantize = self._input_quantizers[index]
        state, memory = start
        outputs = []
        for step in reversed(steps) if reverse else steps:
            size = step.shape[0]  # len() would become a constant in an export
            if size == state.shape[0]:
                state, memory = _advance(
                    quantize(torch.cat([step, state], 1)), memory, weight, bias
                )
                outputs.append(state)
                continue
            joined = quantize(torch.cat([step, state[:size]], 1))
            new_state, new_memory = _advance(joined, memory[:size], weight, bias)
            outputs.append(new_state)
            state = torch.cat([new_state, state[size:]])
            memory = torch.cat([new_memory, memory[size:]])
        if reverse:
            outputs.reverse()
        return outputs, state, memory


# pytorch-quantization also exports the names of the originals.
LSTM = QuantLSTM
LSTMCell = QuantLSTMCell
