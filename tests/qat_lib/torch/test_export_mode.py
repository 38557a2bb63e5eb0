from __future__ import annotations

import io
import threading
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from qat_lib.errors import ExportError
from qat_lib.torch import QuantDescriptor
from qat_lib.torch import nn as quant_nn
from qat_lib.torch.export_mode import enable_onnx_export, export_mode, is_exporting, mark


def test_export_mode_ends_with_its_block() -> None:
    def stop() -> None:
        with export_mode():
            raise ValueError(f"exporting: {is_exporting()}")

    with pytest.raises(ValueError, match="exporting: True"):
        stop()
    assert not is_exporting()


def test_export_mode_stays_in_its_thread() -> None:
    seen: list[bool] = []
    with export_mode():
        thread = threading.Thread(target=lambda: seen.append(is_exporting()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_mark_keeps_every_value() -> None:
    x = torch.tensor([[1.0, -0.0], [float("inf"), 2.0**-149]])
    marked = mark(x, "x_quantizer")
    assert marked.numpy().tobytes() == x.numpy().tobytes()


def test_mark_names_its_quantizer_in_exported_program() -> None:
    class Doubled(torch.nn.Module):
        def forward(self, x):
            return 2 * mark(x, "x_quantizer")

    program = torch.export.export(Doubled().eval(), (torch.zeros(2, 3),))
    targets = {str(node.target): node.args for node in program.graph.nodes}
    assert targets["qatline.quantizer.default"][1] == "x_quantizer"


# What PyTorch's exporter does inside.
pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning"
)
X = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))


def quantized_pair_of_layers(amax: Any = 3.0, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    kinds = {
        "quant_desc_input": QuantDescriptor(amax=amax, **options),
        "quant_desc_weight": QuantDescriptor(axis=0, **options),
    }
    layers = (quant_nn.QuantLinear(16, 8, **kinds), quant_nn.QuantLinear(8, 4, **kinds))
    return nn.Sequential(layers[0], nn.ReLU(), layers[1]).eval()


def written(model: nn.Module, opset: int, **options: Any) -> onnx.ModelProto:
    file: Any = io.BytesIO()
    with enable_onnx_export():
        torch.onnx.export(
            model, (X,), file, opset_version=opset, verbose=False, input_names=["x"], **options
        )
    proto = onnx.load_from_string(file.getvalue())
    onnx.checker.check_model(proto, full_check=True)
    return proto


def test_enable_onnx_export_writes_pairs() -> None:
    model = quantized_pair_of_layers()
    proto = written(model, 18)
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds.count("QuantizeLinear") == kinds.count("DequantizeLinear") == 4
    assert set(kinds) == {"QuantizeLinear", "DequantizeLinear", "Gemm", "Relu"}
    constants = {tensor.name for tensor in proto.graph.initializer}
    pairs = [node for node in proto.graph.node if "Linear" in node.op_type]
    assert all(set(node.input[1:]) <= constants for node in pairs)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (found,) = session.run(None, {"x": X.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, model(X), rtol=1e-4, atol=1e-5)


def test_enable_onnx_export_writes_fp8() -> None:
    proto = written(quantized_pair_of_layers(num_bits=(4, 3)), 19)
    types = {tensor.data_type for tensor in proto.graph.initializer}
    assert onnx.TensorProto.FLOAT8E4M3FN in types
    assert onnx.TensorProto.INT8 not in types


def test_quantizers_compute_as_before_within_enable_onnx_export() -> None:
    model = quantized_pair_of_layers()
    expected = model(X)
    with enable_onnx_export():
        torch.testing.assert_close(model(X), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_bits": 4}, "Expected 8 bits"),
        ({"amax": None}, "Expected a range for the quantizer"),
        ({"axis": (0, 1)}, "Expected one range or one axis"),
    ],
)
def test_enable_onnx_export_names_what_it_cannot_write(
    options: dict[str, Any], message: str
) -> None:
    descriptor = QuantDescriptor(**{"amax": 1.0, **options})
    with pytest.raises(torch.onnx.errors.OnnxExporterError) as caught:
        written(nn.Sequential(quant_nn.TensorQuantizer(descriptor)).eval(), 18)
    causes, error = [], caught.value
    while error is not None:
        causes.append(error)
        error = error.__cause__
    assert any(isinstance(cause, ExportError) and message in str(cause) for cause in causes)


def test_enable_onnx_export_refuses_the_old_exporter() -> None:
    with pytest.raises(ExportError, match="with dynamo=True"):
        written(quantized_pair_of_layers(), 17, dynamo=False)
