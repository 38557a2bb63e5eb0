"""Keep the quantized weights of a PyTorch model for many forward passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from qat_lib.torch.inference import in_inference
from qat_lib.torch.naming import quantizers_of
from qat_lib.torch.tensor_quantizer import TensorQuantizer


@contextmanager
def folded_weights(model: nn.Module) -> Iterator[None]:
    """Quantize a model's weights once, for all calls within the block.

    A quantized model quantizes its weights in each call, since they may have changed. Within the
    block, for inference, the parameters hold the quantized values and the weights' quantizers are
    off. Outputs are the same bit for bit.

    Train, save and export the model outside of the block, where its weights are the trained ones. A
    weight that is set within the block keeps the value set.

    Args:
        model: a quantized ``nn.Module``. A weight that two modules hold, one that is joined of
            parameters (LSTM), and one whose quantizer is off stay as they are.

    Examples:
        >>> import qat_lib.torch
        >>> x = torch.ones(8, 4)
        >>> model = qat_lib.torch.quantize_model(nn.Linear(4, 2), example_input=x)
        >>> with qat_lib.torch.folded_weights(model), torch.no_grad():
        ...     outputs = model(x)
    """
    folded: list[tuple[TensorQuantizer, nn.Parameter, torch.Tensor, torch.Tensor]] = []
    try:
        with in_inference(model), torch.no_grad():
            for quantizer, weight in _foldable(model):
                trained, quantized = weight.data, quantizer(weight)
                folded.append((quantizer, weight, trained, quantized))
                weight.data = quantized.clone()  # operations in place change this one
                quantizer.disable()
        yield
    finally:
        for quantizer, weight, trained, quantized in folded:
            now = weight.data  # perhaps on another device by now
            if torch.equal(now.nan_to_num(), quantized.to(now).nan_to_num()):
                weight.data = trained.to(now)
            quantizer.enable()


def _foldable(model: nn.Module) -> list[tuple[TensorQuantizer, nn.Parameter]]:
    """Return the quantizers whose weight is read through them alone, each with its weight."""
    found = []
    for quantizer in quantizers_of(model).values():
        weight = quantizer.weight if quantizer.enabled else None
        if isinstance(weight, nn.Parameter):
            found.append((quantizer, weight))
    quantizers = Counter(id(weight) for _, weight in found)
    holders: Counter[int] = Counter()
    for module in model.modules():
        holders.update(id(each) for each in module.parameters(recurse=False))
    return [
        (quantizer, weight)
        for quantizer, weight in found
        if quantizers[id(weight)] == 1 and holders[id(weight)] == 1
    ]
