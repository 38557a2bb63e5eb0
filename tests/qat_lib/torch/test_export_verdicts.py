"""A network's export has the layer verdicts of its Keras twin's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_twins import TWINS, images

import qat_lib
import qat_lib.torch
from qat_lib import FusionReport


def verdicts(report: FusionReport) -> dict[str, Any]:
    """Return predicted verdicts by layer name, without Keras's wrapper names."""
    found: dict[str, Any] = {}
    for layer in report.layers:
        found[layer.name.removeprefix("quant_")] = (layer.op_type, layer.precision, layer.writes)
    for add in report.adds:
        fused_into = (add.fused_into or "").removeprefix("quant_")
        found[add.keras_layer.removeprefix("quant_")] = (fused_into, add.precision, add.rule)
    return found


def arrays(network: str) -> Any:
    """Return the images of a network in PyTorch's layout, as NumPy arrays."""
    drawn = images(network, 8)
    return [x.numpy() for x in drawn] if isinstance(drawn, tuple) else drawn.numpy()


@pytest.mark.matrix_except("residual")
@pytest.mark.parametrize("network", ["residual", "inception", "reused"])
def test_layer_verdicts_are_those_of_keras_twin(network: str, tmp_path: Path) -> None:
    make_module, make_model = TWINS[network]
    torch.manual_seed(0)
    module = make_module().eval()
    example, data = images(network), arrays(network)
    plan = qat_lib.torch.plan_quantization(module, custom_qdq_cases="auto", example_input=example)
    quantized = qat_lib.torch.apply_plan(module, plan)
    qat_lib.torch.calibrate(quantized, data, "max")
    path = tmp_path / "torch.onnx"
    written = qat_lib.torch.export_onnx(quantized, path, example_input=example, plan=plan)
    assert (written.quantizers, written.findings) == (len({e.name for e in plan.quantizers}), ())
    assert qat_lib.torch.check_parity(quantized, path, data).passed

    twin = qat_lib.quantize_model(make_model(), custom_qdq_cases="auto")
    is_list = isinstance(data, list)
    channels_last = [np.moveaxis(x, 1, -1) for x in data] if is_list else np.moveaxis(data, 1, -1)
    qat_lib.calibrate(twin, channels_last, "max")
    qat_lib.export_onnx(twin, tmp_path / "keras.onnx")
    found, expected = (
        verdicts(qat_lib.analyze_onnx(tmp_path / name)) for name in ("torch.onnx", "keras.onnx")
    )
    assert found == expected
    assert {verdict[1] for verdict in found.values()} == {"int8"}
