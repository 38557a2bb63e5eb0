"""Reuse the quantized weights of a PyTorch model over many forward passes."""

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
    """Quantize the weights of a model once for all calls within the block.

    A quantized model quantizes its weights in each call, since they may have changed. Within the
    block, for inference, the parameters contain the quantized values and the weight quantizers are
    off. Outputs are the same bit for bit.

    Train, save and export the model outside of the block, with its trained weights. A weight
    assigned within the block keeps its new value.

    Args:
        model: a quantized ``nn.Module``. Weights shared by two modules, weights joined from several
            parameters (LSTM), and weights with a disabled quantizer are not folded.

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
                weight.data = quantized.clone()  # a clone, to detect changes in place below
                quantizer.disable()
        yield
    finally:
        for quantizer, weight, trained, quantized in folded:
            now = weight.data  # the model may have moved to another device
            if torch.equal(now.nan_to_num(), quantized.to(now).nan_to_num()):
                weight.data = trained.to(now)
            quantizer.enable()


def _foldable(model: nn.Module) -> list[tuple[TensorQuantizer, nn.Parameter]]:
    """Return the quantizers that are the only readers of a parameter, with their parameter."""
    found = []
    for quantizer in quantizers_of(model).values():
        weight = quantizer.weight if quantizer.enabled else None
        if isinstance(weight, nn.Parameter):
            found.append((quantizer, weight))
    # A shared weight is quantized once per reader, perhaps with another range: it is not folded.
    quantizers = Counter(id(weight) for _, weight in found)
    holders: Counter[int] = Counter()
    for module in model.modules():
        holders.update(id(each) for each in module.parameters(recurse=False))
    return [
        (quantizer, weight)
        for quantizer, weight in found
        if quantizers[id(weight)] == 1 and holders[id(weight)] == 1
    ]
