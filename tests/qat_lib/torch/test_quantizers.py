"""Quantizers as the export reads them: kept and call-time ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qat_lib.core.ranges import AMAX_FLOOR
from qat_lib.errors import ExportError
from qat_lib.export.ranges import disabled_quantizers, learned_ranges
from qat_lib.torch import QuantDescriptor, TensorQuantizer
from qat_lib.torch.capture import Example
from qat_lib.torch.quantizers import read_quantizers


class Weighted(nn.Module):
    """A weight and an input with quantizers, and an uncalled quantizer."""

    def __init__(self, weight: dict[str, Any], data: dict[str, Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, -4.0], [0.0, 0.0]]))
        self.weight_q = TensorQuantizer(QuantDescriptor(name="w", narrow_range=True, **weight))
        self.data_q = TensorQuantizer(QuantDescriptor(name="x", **data))
        self.idle_q = TensorQuantizer(QuantDescriptor(name="idle"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.data_q(x) @ self.weight_q(self.weight).T


EXAMPLE = Example(args=(torch.ones(1, 2),), kwargs={})


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ({}, 4.0),
        ({"range_policy": "current"}, 4.0),
        ({"axis": 0}, [[4.0], [AMAX_FLOOR]]),
        ({"axis": 0, "range_policy": "current"}, [[4.0], [AMAX_FLOOR]]),
        ({"amax": 3.0}, 3.0),
        ({"axis": 0, "amax": [3.0, 5.0]}, [[3.0], [5.0]]),
        ({"axis": 1, "amax": [3.0, 5.0]}, [[3.0, 5.0]]),
        ({"axis": 0, "amax": [[3.0], [5.0]]}, [[3.0], [5.0]]),
    ],
)
def test_read_quantizers_gives_range_of_weight(weight: Any, expected: Any) -> None:
    module = Weighted(weight, {"amax": 2.0})
    ranges = learned_ranges(read_quantizers(module, EXAMPLE))
    assert list(ranges) == ["w", "x"]
    assert ranges["w"].narrow
    np.testing.assert_array_equal(ranges["w"].amax, np.float32(expected))
    assert module.weight_q.amax is None or "amax" in weight


def test_read_quantizers_asks_for_range_of_activation() -> None:
    with pytest.raises(ExportError, match=r"range for the quantizer 'x'.*calibrate"):
        read_quantizers(Weighted({}, {}), EXAMPLE)
    with pytest.raises(ExportError, match="range for the quantizer 'x'"):
        read_quantizers(Weighted({}, {"range_policy": "current", "amax": 1.0}), EXAMPLE)


def test_read_quantizers_leaves_out_what_is_off() -> None:
    module = Weighted({"amax": 1.0}, {})
    module.data_q.disable()
    found = read_quantizers(module, EXAMPLE)
    assert list(learned_ranges(found)) == ["w"]
    assert disabled_quantizers(found) == ["idle", "x"]


def test_read_quantizers_has_a_shared_one_once() -> None:
    shared = TensorQuantizer(QuantDescriptor(name="q", amax=1.0, unsigned=True))
    found = read_quantizers(nn.Sequential(shared, nn.ReLU(), shared), EXAMPLE)
    assert [(owner.name, owner.unsigned) for owner in found] == [("q", True)]


def test_fp8_quantizers_name_the_other_export() -> None:
    module = Weighted({}, {"num_bits": (4, 3), "amax": 1.0})
    with pytest.raises(ExportError, match=r"'x' with FP8.*enable_onnx_export\(\)"):
        read_quantizers(module, EXAMPLE)
    module.data_q.disable()
    read_quantizers(module, EXAMPLE)
