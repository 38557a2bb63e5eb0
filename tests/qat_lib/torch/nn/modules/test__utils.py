"""The mixins in the three published examples.

As printed, but for the import lines.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules import pooling

from qat_lib.errors import SpecError
from qat_lib.torch import calib
from qat_lib.torch import nn as quant_nn
from qat_lib.torch.naming import model_quantizers
from qat_lib.torch.nn import TensorQuantizer
from qat_lib.torch.nn.modules import _utils
from qat_lib.torch.tensor_quant import QUANT_DESC_8BIT_PER_TENSOR, QuantDescriptor


class QuantMaxPool2d(pooling.MaxPool2d, _utils.QuantInputMixin):
    """Quantized 2D maxpool"""

    default_quant_desc_input = QUANT_DESC_8BIT_PER_TENSOR

    def __init__(
        self,
        kernel_size,
        stride=None,
        padding=0,
        dilation=1,
        return_indices=False,
        ceil_mode=False,
        **kwargs,
    ):
        super(QuantMaxPool2d, self).__init__(  # noqa: UP008
            kernel_size, stride, padding, dilation, return_indices, ceil_mode
        )
        quant_desc_input = _utils.pop_quant_desc_in_kwargs(
            self.__class__, input_only=True, **kwargs
        )
        self.init_quantizer(quant_desc_input)

    def forward(self, input):
        quant_input = self._input_quantizer(input)
        return super(QuantMaxPool2d, self).forward(quant_input)  # noqa: UP008

    @property
    def input_quantizer(self):
        return self._input_quantizer


class QuantLinear(nn.Linear, _utils.QuantMixin):
    def __init__(self, in_features, out_features, bias=True, **kwargs):
        super(QuantLinear, self).__init__(in_features, out_features, bias)  # noqa: UP008
        quant_desc_input, quant_desc_weight = _utils.pop_quant_desc_in_kwargs(
            self.__class__, **kwargs
        )

        self.init_quantizer(quant_desc_input, quant_desc_weight)

    def forward(self, input):
        quant_input = self._input_quantizer(input)
        quant_weight = self._weight_quantizer(self.weight)

        output = F.linear(quant_input, quant_weight, bias=self.bias)

        return output  # noqa: RET504

    @property
    def input_quantizer(self):
        return self._input_quantizer

    @property
    def weight_quantizer(self):
        return self._weight_quantizer


def test_the_published_max_pool_works() -> None:
    x = torch.randn(2, 3, 6, 6)
    pool, library = QuantMaxPool2d(2), quant_nn.QuantMaxPool2d(2)
    torch.testing.assert_close(pool(x), library(x), rtol=0, atol=0)
    torch.testing.assert_close(pool(x), F.max_pool2d(TensorQuantizer()(x), 2), rtol=0, atol=0)
    pool.input_quantizer.disable()
    torch.testing.assert_close(pool(x), F.max_pool2d(x, 2), rtol=0, atol=0)
    given = QuantMaxPool2d(2, quant_desc_input=QuantDescriptor(num_bits=4))
    assert given.input_quantizer.num_bits == 4


def test_the_published_linear_works() -> None:
    torch.manual_seed(0)
    linear = QuantLinear(5, 3, quant_desc_weight=QuantDescriptor(axis=0))
    library = quant_nn.QuantLinear(5, 3)
    library.load_state_dict(linear.state_dict())
    x = torch.randn(4, 5)
    torch.testing.assert_close(linear(x), library(x), rtol=0, atol=0)
    assert QuantLinear(5, 3).weight_quantizer.axis is None
    for quantizer in (linear.weight_quantizer, linear.input_quantizer):
        quantizer.disable()
    torch.testing.assert_close(linear(x), F.linear(x, linear.weight, linear.bias))


def test_the_published_adaptive_pool_works() -> None:
    test_input = torch.randn(1, 5, 5, 5, dtype=torch.double)

    quantizer = TensorQuantizer(quant_nn.QuantLinear.default_quant_desc_input)

    quant_input = quantizer(test_input)

    out = F.adaptive_avg_pool2d(quant_input, 3)
    assert (out.dtype, out.shape) == (torch.double, (1, 5, 3, 3))
    step = test_input.abs().max().item() / 127
    assert 0 < (quant_input - test_input).abs().max() <= step * 0.5000001


def test_a_custom_module_ties_its_weight() -> None:
    quantizers = model_quantizers(nn.Sequential(QuantLinear(5, 3), QuantMaxPool2d(2)))
    assert list(quantizers) == ["0._input_quantizer", "0._weight_quantizer", "1._input_quantizer"]
    assert [q.of_weight for q in quantizers.values()] == [False, True, False]


def test_class_defaults_are_of_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (quant_nn.QuantConv2d, quant_nn.QuantMaxPool2d):
        monkeypatch.setattr(kind, "default_quant_desc_input", kind.default_quant_desc_input)
    histogram = QuantDescriptor(calib_method="histogram")
    quant_nn.QuantConv2d.set_default_quant_desc_input(histogram)
    made = quant_nn.QuantConv2d(1, 1, 1).input_quantizer
    assert isinstance(made._calibrator, calib.HistogramCalibrator)
    assert quant_nn.QuantConv2d.default_quant_desc_input == histogram
    assert quant_nn.QuantLinear.default_quant_desc_input == QuantDescriptor()
    assert quant_nn.QuantConv1d.default_quant_desc_input == QuantDescriptor()
    quant_nn.QuantMaxPool2d.set_default_quant_desc_input(QuantDescriptor(num_bits=5))
    assert quant_nn.QuantMaxPool2d(2).input_quantizer.num_bits == 5


def test_weight_defaults_belong_to_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (quant_nn.QuantConv2d, quant_nn.QuantLinear):
        monkeypatch.setattr(kind, "default_quant_desc_weight", kind.default_quant_desc_weight)
    quant_nn.QuantConv2d.set_default_quant_desc_weight(QuantDescriptor(num_bits=6))
    assert quant_nn.QuantConv2d(1, 1, 1).weight_quantizer.num_bits == 6
    assert quant_nn.QuantLinear(1, 1).weight_quantizer.num_bits == 8


@pytest.mark.parametrize(
    "setter", ["set_default_quant_desc_input", "set_default_quant_desc_weight"]
)
def test_class_defaults_are_descriptors(setter: str) -> None:
    with pytest.raises(SpecError, match=r"Expected a QuantDescriptor\. Received: 8"):
        getattr(quant_nn.QuantLinear, setter)(8)


def test_modules_refuse_integers_as_outputs() -> None:
    with pytest.raises(SpecError, match="Received: fake_quant=False"):
        quant_nn.QuantLinear(2, 2, quant_desc_input=QuantDescriptor(fake_quant=False))
    with pytest.raises(SpecError, match="Received: fake_quant=False"):
        quant_nn.QuantLinear(2, 2, quant_desc_weight=QuantDescriptor(fake_quant=False))


def test_pop_quant_desc_in_kwargs_refuses_leftovers() -> None:
    with pytest.raises(TypeError, match="Unused keys: other"):
        _utils.pop_quant_desc_in_kwargs(quant_nn.QuantLinear, other=1)
    found = _utils.pop_quant_desc_in_kwargs(quant_nn.QuantLinear)
    assert found == (QuantDescriptor(), QuantDescriptor(axis=0, narrow_range=True))
