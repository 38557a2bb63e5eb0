"""EinsumDense and Dense on sequences of any length, as one MatMul."""

import numpy as np
import onnx
import pytest

import qat_lib
from qat_lib.analysis import analyze_onnx
from qat_lib.export import passes

keras = pytest.importorskip("keras")
L = keras.layers


@pytest.mark.parametrize(
    ("equation", "data", "weight"),
    [
        ("abc,cd->abd", (2, 3, 4), (4, 5)),
        ("abc,dc->abd", (2, 3, 4), (5, 4)),
        ("abc,cde->abde", (2, 3, 4), (4, 5, 6)),
        ("abc,cde->abed", (2, 3, 4), (4, 5, 6)),
        ("abde,dec->abc", (2, 3, 4, 5), (4, 5, 6)),
        ("...c,cd->...d", (2, 3, 2, 4), (4, 5)),
    ],
)
def test_product_with_a_weight_is_a_matmul(lab, rng, equation, data, weight):
    result = np.einsum(equation, np.empty(data), np.empty(weight)).shape
    text = f"(float[{','.join(map(str, data))}] x) => (float[{','.join(map(str, result))}] y)"
    text += f' {{ y = Einsum<equation = "{equation}">(x, w) }}'
    model = lab.build(text, w=rng.normal(size=weight).astype(np.float32))
    x = {"x": rng.normal(size=data).astype(np.float32)}
    lowered = lab.check(model, passes.merge_einsum, x, rtol=1e-5, atol=1e-5)
    assert lab.ops(lowered)["MatMul"] == 1
    assert lab.ops(lowered)["Einsum"] == 0


@pytest.mark.parametrize("equation", ["abc,bcd->abd", "abc,cd->adb", "abc,cd->bad"])
def test_other_products_stay(lab, rng, equation):
    weight = (3, 4, 5) if "bcd" in equation else (4, 5)
    result = np.einsum(equation, np.empty((2, 3, 4)), np.empty(weight)).shape
    text = f"(float[2,3,4] x) => (float[{','.join(map(str, result))}] y)"
    model = lab.build(
        text + f' {{ y = Einsum<equation = "{equation}">(x, w) }}', w=np.ones(weight, np.float32)
    )
    assert lab.ops(passes.merge_einsum(model))["Einsum"] == 1


def sequence(kind, length):
    """Return a residual block on a sequence, between two Dense layers."""
    x = keras.Input((length, 16), name="x")
    y = start = L.ReLU(name="start")(L.Dense(16, name="in")(x))
    if kind == "heads":
        y = L.EinsumDense("abc,cde->abde", output_shape=(None, 2, 8), bias_axes="de", name="split")(
            y
        )
        y = L.EinsumDense("abde,dec->abc", output_shape=(None, 16), bias_axes="c", name="main")(y)
    elif kind == "ellipsis":
        y = L.EinsumDense("...c,cd->...d", output_shape=(16,), bias_axes="d", name="main")(y)
    elif kind == "einsum":
        y = L.EinsumDense("abc,cd->abd", output_shape=(None, 16), name="main")(y)
    else:
        y = L.Dense(16, name="main")(y)
    y = L.ReLU()(L.Add(name="sum")([start, y]))
    return keras.Model(x, L.Dense(4, name="out")(y))


@pytest.mark.matrix_except("einsum-None", "heads-6")
@pytest.mark.parametrize("length", [6, None])
@pytest.mark.parametrize("kind", ["dense", "einsum", "ellipsis", "heads"])
def test_residual_of_a_sequence_fuses_in_int8(kind, length, rng, tmp_path):
    model = qat_lib.quantize_model(
        sequence(kind, length), custom_qdq_cases=[qat_lib.TensorRTQDQCase()]
    )
    data = rng.normal(size=(3, 6, 16)).astype(np.float32)
    qat_lib.calibrate(model, data)
    path = tmp_path / "sequence.onnx"
    qat_lib.export_onnx(model, path)
    report = analyze_onnx(path)
    assert report.int8_layers == len(report.layers)
    assert report.fused_adds == 1
    assert [f for f in report.findings if f.severity != "info"] == []
    found = {node.op_type for node in onnx.load(path).graph.node}
    assert not {"Einsum", "Shape", "Gather", "Concat"} & found
    assert qat_lib.check_parity(model, path, data).passed
