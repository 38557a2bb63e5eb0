"""The learned numbers against those in a file: a weight's scales and the axis that they lie along."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_lib.export.metadata import Recorded, RecordedWeight, integer_digest
from qat_lib.export.tensors import Tensors
from qat_lib.export.verify_ranges import check_weights

NODE = "dense_kernel_quantizer/DequantizeLinear"
INTEGERS = np.arange(-4, 5, dtype=np.int8).reshape(3, 3)  # square: the count of the scales fits both axes
SCALE = np.float32([0.25, 0.5, 1.0])


def weight_file(axis: int | None, scale: np.ndarray = SCALE) -> onnx.ModelProto:
    attributes = {} if axis is None else {"axis": axis}
    node = helper.make_node("DequantizeLinear", ["w", "scale"], ["y"], NODE, **attributes)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 3])
    tensors = [numpy_helper.from_array(INTEGERS, "w"), numpy_helper.from_array(scale, "scale")]
    return helper.make_model(helper.make_graph([node], "net", [], [output], tensors))


def recorded(axis: int | None, scale: np.ndarray = SCALE) -> Recorded:
    weight = RecordedWeight(
        quantizer="dense_kernel_quantizer",
        scale=np.atleast_1d(scale),
        factor=None,
        digest=integer_digest(INTEGERS, None, axis or 0),
        axis=axis,
    )
    return Recorded(weights={NODE: weight})


def codes(proto: onnx.ModelProto, record: Recorded) -> list[str]:
    return [finding.code for finding in check_weights(Tensors(proto, Path()), record)]


@pytest.mark.parametrize(("written", "learned"), [(0, 0), (1, 1), (-1, 1), (-2, 0), (None, 1)])
def test_check_weights_accepts_scales_along_the_learned_axis(written: int | None, learned: int) -> None:
    assert codes(weight_file(written), recorded(learned)) == []


@pytest.mark.parametrize(("written", "learned"), [(0, 1), (1, 0), (-1, 0), (-2, 1), (None, 0)])
def test_check_weights_finds_scales_along_another_axis(written: int | None, learned: int) -> None:
    assert codes(weight_file(written), recorded(learned)) == ["Q03"]


def test_check_weights_needs_no_axis_for_one_scale() -> None:
    scale = np.float32(0.5)
    assert codes(weight_file(1, scale), recorded(0, scale)) == []


def test_check_weights_skips_the_axis_of_a_record_that_has_none() -> None:
    assert codes(weight_file(0), recorded(None)) == []


def test_check_weights_finds_other_scales_and_integers() -> None:
    assert codes(weight_file(1, SCALE * np.float32(1.001)), recorded(1)) == ["Q03"]
    changed = weight_file(1)
    changed.graph.initializer[0].raw_data = (INTEGERS + 1).tobytes()
    assert codes(changed, recorded(1)) == ["Q04"]


def test_check_weights_finds_a_lost_weight() -> None:
    lost = weight_file(1)
    lost.graph.node[0].name = "another"
    assert codes(lost, recorded(1)) == ["Q01"]
