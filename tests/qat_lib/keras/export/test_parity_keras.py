"""Parity of exported Keras models: by layer, and with unfit data."""

import numpy as np
import onnx
import pytest
from export_network import build_network

import qat_lib
from qat_lib.errors import ExportError

keras = pytest.importorskip("keras")
layers = keras.layers


def test_layer_by_layer_comparison_names_where_a_difference_starts(
    exported, quantized, images, tmp_path
):
    report = qat_lib.check_parity(quantized, exported, images[:8], layers=True)
    assert {"stem_bn", "gate", "quant_probs"} <= {entry.layer for entry in report.layers}
    proto = onnx.load(exported)
    for tensor in proto.graph.initializer:
        if tensor.name == "quant_depthwise/bias":
            array = onnx.numpy_helper.to_array(tensor) + 0.5
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float32), tensor.name))
    broken = tmp_path / "broken.onnx"
    onnx.save(proto, broken)
    report = qat_lib.check_parity(quantized, broken, images[:8], layers=True)
    assert report.first_difference(0.05).layer == "depthwise_bn"
    assert report.first_difference(0.05).tensor == "quant_depthwise/Conv:0"


def test_a_layer_comparison_leaves_the_weights_outside(quantized, exported, tmp_path):
    """ONNX Runtime can't take a model above 2 GB in one piece."""
    from qat_lib.export import session

    path = tmp_path / "big.onnx"
    onnx.save(
        onnx.load(exported), path, save_as_external_data=True, location="big.data", size_threshold=0
    )
    small = path.stat().st_size
    text, added = session._with_outputs(path, ("stem/Conv:0", "quant_stem/Conv:0"))
    assert (len(text) - small, len(added)) < (1000, 3)


def test_parity_needs_data_that_fit(quantized, exported, images):
    with pytest.raises(ExportError, match="at least one sample"):
        qat_lib.check_parity(quantized, exported, images[:0])
    with pytest.raises(ExportError, match="1 input arrays"):
        qat_lib.check_parity(quantized, exported, [images, images])


@pytest.mark.parametrize(
    "data", [np.zeros((4, 3, 12, 3), "f4"), np.zeros((4, 12), "f4"), np.full((2, 12, 12, 3), "a")]
)
def test_parity_says_what_data_the_model_takes(quantized, exported, data):
    with pytest.raises(ExportError, match="for the input 'image'"):
        qat_lib.check_parity(quantized, exported, data)


def test_parity_fails_for_another_network(network, quantized, exported, images, tmp_path):
    other = build_network()
    assert not qat_lib.check_parity(other, exported, images).passed
