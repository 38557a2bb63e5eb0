"""The quantizers of a model, by name."""

from __future__ import annotations

from torch import nn

from qat_lib.torch import nn as quant_nn
from qat_lib.torch.naming import model_quantizers, named_by_path
from qat_lib.torch.tensor_quant import QuantDescriptor
from qat_lib.torch.tensor_quantizer import TensorQuantizer


def test_model_quantizers_are_named_after_their_place() -> None:
    model = nn.ModuleDict({"conv": quant_nn.QuantConv2d(1, 1, 1), "rnn": quant_nn.QuantLSTM(2, 2)})
    model["sum"] = TensorQuantizer(QuantDescriptor(name="mine"))
    found = model_quantizers(model)
    assert sorted(found) == [
        "conv._input_quantizer",
        "conv._weight_quantizer",
        "mine",
        "rnn._input_quantizers.0",
        "rnn._weight_quantizers.0",
    ]
    assert list(model_quantizers(model, ".*weight.*")) == [
        "conv._weight_quantizer",
        "rnn._weight_quantizers.0",
    ]


def test_named_by_path_names_within_the_block() -> None:
    model = nn.Sequential(TensorQuantizer(), TensorQuantizer(QuantDescriptor(name="mine")))
    with named_by_path(model):
        assert [quantizer.name for quantizer in model] == ["0", "mine"]
    assert [quantizer.name for quantizer in model] == ["", "mine"]


def test_model_quantizers_of_a_quantizer_alone() -> None:
    quantizer = TensorQuantizer()
    assert model_quantizers(quantizer) == {"quantizer": quantizer}
    assert model_quantizers(nn.Linear(1, 1)) == {}


def test_model_quantizers_count_a_shared_one_once() -> None:
    quantizer = TensorQuantizer()
    model = nn.ModuleList([quantizer, nn.Sequential(quantizer)])
    assert model_quantizers(model) == {"0": quantizer}


def test_quantizers_sharing_a_name_use_paths() -> None:
    descriptor = QuantDescriptor(name="same")
    model = nn.Sequential(TensorQuantizer(descriptor), TensorQuantizer(descriptor))
    assert list(model_quantizers(model)) == ["0", "1"]
    with named_by_path(model):
        assert [quantizer.name for quantizer in model] == ["0", "1"]
    assert [quantizer.name for quantizer in model] == ["same", "same"]
