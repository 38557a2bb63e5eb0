"""Learned numbers against a file: scales, zero points, integers, weight axes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_lib.export.metadata import Recorded, RecordedWeight, integer_digest
from qat_lib.export.tensors import Tensors
from qat_lib.export.verify_ranges import check_activations, check_weights

NODE = "dense_kernel_quantizer/DequantizeLinear"
# Square: the count of the scales fits both axes.
INTEGERS = np.arange(-4, 5, dtype=np.int8).reshape(3, 3)
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
def test_check_weights_accepts_scales_along_the_learned_axis(
    written: int | None, learned: int
) -> None:
    assert codes(weight_file(written), recorded(learned)) == []


@pytest.mark.parametrize(("written", "learned"), [(0, 1), (1, 0), (-1, 0), (-2, 1), (None, 0)])
def test_check_weights_finds_scales_along_another_axis(written: int | None, learned: int) -> None:
    assert codes(weight_file(written), recorded(learned)) == ["Q03"]


def test_check_weights_needs_the_axis_of_two_scales() -> None:
    integers, scale = np.int8([[1, 2], [3, 4]]), np.float32([0.5, 0.25])
    proto = weight_file(0, scale)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(integers, "w"))
    digest = integer_digest(integers, None, 1)
    weight = RecordedWeight(quantizer="k", scale=scale, factor=None, digest=digest, axis=1)
    assert codes(proto, Recorded(weights={NODE: weight})) == ["Q03"]


def test_check_weights_needs_no_axis_for_one_scale() -> None:
    scale = np.float32(0.5)
    assert codes(weight_file(1, scale), recorded(0, scale)) == []


def test_check_weights_skips_missing_axis() -> None:
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


def test_check_weights_continues_behind_wrong_weight() -> None:
    """A missing weight, a variable one, and one of other integers.

    In that order.
    """
    (weight,) = recorded(1).weights.values()
    proto = weight_file(1)
    proto.graph.node.append(
        helper.make_node("DequantizeLinear", ["nowhere", "scale"], ["z"], "b/DequantizeLinear")
    )
    proto.graph.initializer[0].raw_data = (INTEGERS + 1).tobytes()
    nodes = ("a/DequantizeLinear", "b/DequantizeLinear", NODE)
    found = list(
        check_weights(Tensors(proto, Path()), Recorded(weights=dict.fromkeys(nodes, weight)))
    )
    assert [(finding.code, finding.node) for finding in found] == list(
        zip(("Q01", "Q04", "Q04"), nodes, strict=True)
    )


def test_check_weights_finds_integers_without_a_scale() -> None:
    proto = weight_file(1)
    proto.graph.node[0].input[1] = "computed"
    assert codes(proto, recorded(1)) == ["Q03", "Q04"]


FACTOR = np.float32([2.0, -0.5, 0.0])


@pytest.mark.parametrize("axis", [0, 1, None])
def test_check_weights_takes_the_folded_normalization_off(axis: int | None) -> None:
    """The scale takes the factor's size, the integers its sign.

    A dead channel's integers say nothing.
    """
    along = 1 if axis is None else axis
    proto = weight_file(along, SCALE * np.float32([2.0, 0.5, 1.0]))
    shape = (3, 1) if along == 0 else (1, 3)
    signed = INTEGERS * np.int8([1, -1, 1]).reshape(shape)
    proto.graph.initializer[0].raw_data = signed.tobytes()
    digest = integer_digest(INTEGERS, FACTOR, along)
    weight = RecordedWeight(
        quantizer="dense_kernel_quantizer", scale=SCALE, factor=FACTOR, digest=digest, axis=axis
    )
    assert codes(proto, Recorded(weights={NODE: weight})) == []
    proto.graph.initializer[0].raw_data = INTEGERS.tobytes()
    assert codes(proto, Recorded(weights={NODE: weight})) == ["Q04"]
    proto.graph.initializer[0].raw_data = (
        np.where(np.reshape(FACTOR, shape) == 0, 9, signed).astype(np.int8).tobytes()
    )
    assert codes(proto, Recorded(weights={NODE: weight})) == []


def test_check_weights_finds_integers_of_another_shape() -> None:
    """With fewer axes than the record says, or with other channels."""
    weight = RecordedWeight(quantizer="k", scale=SCALE, factor=FACTOR, digest="", axis=1)
    for integers in (np.int8([1, 2, 3]), np.zeros((3, 4), np.int8)):
        proto = weight_file(1, np.float32([0.5, 0.25, 1.0]))
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(integers, "w"))
        assert "Q04" in codes(proto, Recorded(weights={NODE: weight}))


def test_check_weights_takes_one_factor_for_all() -> None:
    weight = RecordedWeight(
        quantizer="k",
        scale=np.float32([0.25]),
        factor=np.float32([-2.0]),
        digest=integer_digest(-INTEGERS, None, 1),
        axis=1,
    )
    assert codes(weight_file(1, np.float32(0.5)), Recorded(weights={NODE: weight})) == []


def test_check_weights_quantizes_float_weights() -> None:
    """FP32 + Q + DQ: the integers are what the QuantizeLinear makes."""
    proto = weight_file(1)
    proto.graph.node[0].input[0] = "q"
    quantize = helper.make_node(
        "QuantizeLinear", ["floats", "scale"], ["q"], "k/QuantizeLinear", axis=1
    )
    proto.graph.node.insert(0, quantize)
    proto.graph.initializer.append(numpy_helper.from_array(INTEGERS * SCALE, "floats"))
    assert codes(proto, recorded(1)) == []
    proto.graph.initializer[-1].CopyFrom(numpy_helper.from_array(INTEGERS * SCALE + 1, "floats"))
    assert codes(proto, recorded(1)) == ["Q04"]


def up(scale: Any, steps: int) -> Any:
    """Return a scale that lies some representable numbers above."""
    for _ in range(steps):
        scale = np.nextafter(scale, np.full_like(scale, np.inf))
    return scale


@pytest.mark.parametrize(
    ("learned", "steps", "found"),
    [
        (SCALE, 0, False),
        (SCALE, 2, False),  # the factor of a normalization is rounded
        (SCALE, 3, True),
        (np.float32([2**-20] * 3), 1, False),
        (np.float32([2**-20] * 3), 8, True),
        (np.float32([1e-9] * 3), 8, True),  # no absolute tolerance
        (np.float32([1e6] * 3), 8, True),
    ],
)
def test_check_weights_allows_for_rounding_of_float32(
    learned: np.ndarray, steps: int, found: bool
) -> None:
    assert codes(weight_file(1, up(learned, steps)), recorded(1, learned)) == ["Q03"] * found


@pytest.mark.parametrize(
    ("learned", "steps", "found"),
    [
        (SCALE, 0, False),
        (SCALE, 2, False),
        (SCALE, 3, True),
        (np.float32([2**-24] * 3), 1, False),  # two of the least numbers of float16
        (np.float32([2**-24] * 3), 2, True),
        (np.float32([1e-9] * 3), 0, False),  # is raised to the least
        (np.float32([1e-9] * 3), 2, True),
        (np.float32([1e6] * 3), 0, False),  # is lowered to the largest
    ],
)
def test_check_weights_allows_for_rounding_of_float16(
    learned: np.ndarray, steps: int, found: bool
) -> None:
    half = np.clip(learned, 2.0**-24, 65504).astype(np.float16)
    record = Recorded(weights=recorded(1, learned).weights, half=True)
    assert codes(weight_file(1, up(half, steps)), record) == ["Q03"] * found


QUANTIZER = "x_quantizer"
ONE_ZERO = np.int8(0)


def activation_file(
    scale: Any, zero_point: Any = ONE_ZERO, *, op: str = "DequantizeLinear"
) -> onnx.ModelProto:
    """Another quantizer's node, a like-named Relu, and ``op`` under test.

    The Relu has the name of the quantizer under test.
    """
    tensors = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in (("scale", scale), ("zero", zero_point))
        if value is not None
    ]
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["a", "unlike"], ["b"], "other_quantizer/DequantizeLinear"
        ),
        helper.make_node("Relu", ["b"], ["x"], f"{QUANTIZER}/Relu"),
        helper.make_node(
            op, ["x", "scale"] + ["zero"] * (zero_point is not None), ["y"], f"{QUANTIZER}/{op}"
        ),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph(nodes, "net", [], [output], tensors))


def messages(proto: onnx.ModelProto, scale: float = 0.5, **options: Any) -> list[str]:
    record = Recorded(activations={QUANTIZER: scale}, **options)
    found = list(check_activations(Tensors(proto, Path()), record))
    assert {finding.code for finding in found} <= {"Q03"}
    return [finding.message for finding in found]


def test_check_activations_accepts_the_learned_scale() -> None:
    assert messages(activation_file(np.float32(0.5)), unsigned=()) == []
    assert messages(activation_file(np.float32([0.5]))) == []


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize(
    ("scale", "shown"),
    [
        (np.nextafter(np.float32(0.5), np.float32(1)), "0.50"),
        (np.nextafter(np.float32(0.5), np.float32(0)), "0.49"),
        (np.full(4, 0.5, np.float32), "[0.5 0.5 0.5],"),
        (np.zeros(0, np.float32), "[],"),
        (None, "None, learned was 0.5."),
    ],
    ids=["larger", "smaller", "several", "empty", "not constant"],
)
def test_check_activations_finds_another_scale(scale: Any, shown: str, op: str) -> None:
    (message,) = messages(activation_file(scale, op=op))
    assert shown in message


@pytest.mark.parametrize(
    ("learned", "written"),
    [
        (0.1, np.float16(0.1)),
        (1e-9, np.float16(2.0**-24)),
        (65519.0, np.float16(65504)),
        (1e6, np.float16(65504)),
    ],
    ids=["rounded", "smallest", "nearly infinite", "largest"],
)
def test_check_activations_rounds_the_scale_of_a_half_export(
    learned: float, written: np.float16
) -> None:
    assert messages(activation_file(written), learned, half=True) == []
    assert len(messages(activation_file(written), learned)) == 1
    assert (
        len(messages(activation_file(np.nextafter(written, np.float16(1))), learned, half=True))
        == 1
    )


@pytest.mark.parametrize(
    ("zero_point", "unsigned", "shown"),
    [
        (np.int8(0), False, ""),
        (np.uint8(0), True, ""),
        (None, True, ""),  # ONNX's default is UINT8
        (None, False, "is 0 of type uint8, written was 0 of type int8"),
        (np.uint8(0), False, "is 0 of type uint8, written was 0 of type int8"),
        (np.int8(0), True, "is 0 of type int8, written was 0 of type uint8"),
        (np.uint8(1), True, "is 1 of type uint8"),
        (np.int8([-1, 0]), False, "is -1 of type int8"),
    ],
)
def test_check_activations_compares_the_zero_point(
    zero_point: Any, unsigned: bool, shown: str
) -> None:
    names = (f"{QUANTIZER}/DequantizeLinear",) if unsigned else ()
    found = messages(activation_file(np.float32(0.5), zero_point), unsigned=names)
    assert len(found) == bool(shown)
    assert all(shown in message for message in found)


def test_check_activations_reads_zero_point_of_dequantizer() -> None:
    """An older record lacks it; a QuantizeLinear's partner has it."""
    other = np.uint8(3)
    assert messages(activation_file(np.float32(0.5), other), unsigned=None) == []
    assert messages(activation_file(np.float32(0.5), other, op="QuantizeLinear"), unsigned=()) == []
