"""Constants of a file, and float weights quantized by QuantizeLinear."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_lib.errors import ExportError
from qat_lib.export.tensors import Tensors


def tensors(**arrays: Any) -> Tensors:
    made = [numpy_helper.from_array(np.asarray(value), name) for name, value in arrays.items()]
    return Tensors(helper.make_model(helper.make_graph([], "net", [], [], made)), Path())


def quantize(
    weight: Any, scale: Any, *, op: str = "QuantizeLinear", **attributes: Any
) -> np.ndarray | None:
    node = helper.make_node(op, ["w", "s", "z"], ["q"], **attributes)
    return tensors(w=weight, s=scale, z=np.int8(0)).integers(node, "q")


def test_get_of_another_name_is_none() -> None:
    assert tensors(w=np.float32(1)).get("v") is None
    assert tensors(w=np.float32(1)).get("w") == 1


def test_get_of_damaged_data_is_refused() -> None:
    damaged = onnx.TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[3], raw_data=b"\0\0\0\0"
    )
    proto = helper.make_model(helper.make_graph([], "net", [], [], [damaged]))
    with pytest.raises(ExportError, match=r"'w' to hold \[3\] values"):
        Tensors(proto, Path()).get("w")


def test_integers_without_a_quantizer_are_the_constant() -> None:
    assert tensors(w=np.int8([3])).integers(None, "w") == 3
    assert tensors(w=np.int8([3])).integers(None, "v") is None


WEIGHT = np.float32([[1.0, 2.0, 3.0], [-4.0, 5.0, 400.0]])


@pytest.mark.parametrize(
    ("scale", "attributes", "expected"),
    [
        (np.float32(1), {}, [[1, 2, 3], [-4, 5, 127]]),
        (np.float32(2), {"axis": 0}, [[0, 1, 2], [-2, 2, 127]]),  # half to even
        (np.float32(-4), {}, [[0, 0, -1], [1, -1, -100]]),
        (np.float32(-1), {}, [[-1, -2, -3], [4, -5, -128]]),
        (np.float32([1, 1, 100]), {}, [[1, 2, 0], [-4, 5, 4]]),
        (np.float32([1, 1, 100]), {"axis": -1}, [[1, 2, 0], [-4, 5, 4]]),
        (np.float32([1, 100]), {"axis": 0}, [[1, 2, 3], [0, 0, 4]]),
        (np.float32([1, 100]), {"axis": -2}, [[1, 2, 3], [0, 0, 4]]),
        (np.float32([100]), {"axis": 0}, [[0, 0, 0], [0, 0, 4]]),
        (np.float32([1, 100]), {}, None),
        (np.float32([1, 1, 100]), {"axis": 0}, None),
        (np.float32([1, 1, 100]), {"axis": 2}, None),
        (np.float32([1, 100]), {"axis": -3}, None),
    ],
)
def test_integers_of_a_quantizer(
    scale: np.ndarray, attributes: dict[str, int], expected: Any
) -> None:
    found = quantize(WEIGHT, scale, **attributes)
    assert (None if found is None else found.tolist()) == expected
    assert found is None or found.dtype == np.int8


def test_integers_need_a_quantizer_and_constants() -> None:
    assert quantize(WEIGHT, np.float32(1), op="Div") is None
    node = helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"])
    assert tensors(w=WEIGHT).integers(node, "q") is None
    assert tensors(s=np.float32(1)).integers(node, "q") is None
