"""Weights of fewer than 8 bits of PyTorch modules in ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

import qat_lib
from qat_lib import torch as qat_torch


@pytest.mark.parametrize(("weights", "count"), [("int8", 0), ("int4", 2)])
def test_export_keeps_few_bit_weights(weights: Any, count: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, bias=False),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 36, 5),
    ).eval()
    with torch.no_grad():
        module[1].weight.copy_(torch.tensor([1.0, -0.5, 2.0, -1.0]))
    images = torch.randn(8, 3, 8, 8)
    spec = qat_lib.QuantizationSpec().add("Conv2d", is_keras_class=True, weight_num_bits=4)
    spec.add("Linear", is_keras_class=True, weight_num_bits=3)
    made = qat_torch.quantize_model(
        module, quantization_spec=spec, custom_qdq_cases="auto", example_input=images[:2]
    )
    qat_torch.calibrate(made, [images])
    path = tmp_path / "narrow.onnx"
    qat_torch.export_onnx(
        made, path, example_input=images[:2], target="onnxruntime", weights=weights
    )
    initializers = onnx.load(path).graph.initializer
    zero_points_too = [each.data_type == onnx.TensorProto.INT4 for each in initializers]
    assert sum(zero_points_too) == 2 * count
    assert qat_torch.check_parity(made, path, images.numpy()).mismatches == 0
