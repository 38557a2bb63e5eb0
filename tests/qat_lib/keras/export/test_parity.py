"""Findings of a parity check on exactly known outputs.

What Keras and ONNX give is what goes in.
"""

import inspect
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
from keras import layers

from qat_lib import check_parity
from qat_lib.errors import ExportError
from qat_lib.export.metadata import Recorded
from qat_lib.export.parity_report import LayerDifference, ParityReport
from qat_lib.keras.quantizers import TensorQuantizer

KINDS = {
    np.dtype(np.float32): onnx.TensorProto.FLOAT,
    np.dtype(np.float16): onnx.TensorProto.FLOAT16,
}
QUANTIZED = Recorded(activations={"q": 0.5})
QUANTIZED_HALF = Recorded(activations={"q": 0.5}, half=True)


def compare(
    folder: Path,
    *pairs: tuple[Any, Any],
    fixed: int | None = None,
    scale: float = 1.0,
    offset: float = 0.0,
    half: bool = False,
    quantizers: Recorded | None = None,
    tensors: dict[str, str] | None = None,
    **options: Any,
) -> ParityReport:
    """Compare a Keras model (first arrays) with a file (second arrays).

    Keras's outputs are ``e * scale + offset``.
    """
    data = {
        f"{side}{i}": np.asarray(x, np.float32)
        for i, pair in enumerate(pairs)
        for side, x in zip("er", pair, strict=True)
    }
    inputs = {name: keras.Input(x.shape[1:], name=name) for name, x in data.items()}
    outputs: list[Any] = [
        layers.Rescaling(scale, offset, name=f"y{i}")(inputs[f"e{i}"]) for i in range(len(pairs))
    ]
    if half:
        outputs = [keras.ops.cast(y, "float16") for y in outputs]
    model = keras.Model(list(inputs.values()), outputs)
    path = write(
        folder / "model.onnx", data, len(pairs), fixed=fixed, quantizers=quantizers, tensors=tensors
    )
    return check_parity(model, path, list(data.values()), **options)


def write(
    path: Path,
    data: dict[str, np.ndarray],
    outputs: int,
    *,
    fixed: int | None = None,
    quantizers: Recorded | None = None,
    tensors: dict[str, str] | None = None,
) -> Path:
    """Write a graph whose outputs ``y<i>`` and ``t<i>`` are the input ``r<i>``."""
    float32, batch = onnx.TensorProto.FLOAT, fixed or "batch"
    values = {
        n: onnx.helper.make_tensor_value_info(n, float32, [batch, *x.shape[1:]])
        for n, x in data.items()
    }
    made = [onnx.helper.make_tensor_value_info(f"y{i}", float32, None) for i in range(outputs)]
    nodes = [onnx.helper.make_node("Identity", [f"r{i}"], [f"t{i}"]) for i in range(outputs)]
    nodes += [onnx.helper.make_node("Identity", [f"t{i}"], [f"y{i}"]) for i in range(outputs)]
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", list(values.values()), made),
        ir_version=8,
        opset_imports=[onnx.helper.make_opsetid("", 17)],
    )
    if quantizers is not None:
        proto.metadata_props.add(key="qatline.quantizers", value=quantizers.to_json())
    if tensors is not None:
        proto.metadata_props.add(key="qatline.tensors", value=json.dumps(tensors))
    onnx.save(proto, path)
    return path


def test_parity_measures_over_all_batches_and_outputs(tmp_path: Path) -> None:
    first = ([[1.0], [-4.0], [2.0]], [[1.5], [-4.0], [2.25]])
    second = ([[3.0], [1.0], [1.0]], [[3.0], [1.0], [2.5]])
    report = compare(tmp_path, first, second, batch_size=2)
    assert (report.samples, report.largest_difference, report.magnitude) == (3, 1.5, 4.0)
    assert report.mean_difference == pytest.approx((0.5 + 0.25 + 1.5) / 6)
    assert (report.labels_equal, report.ties, report.mismatches, report.step, report.noise) == (
        None,
        0,
        0,
        0,
        0,
    )
    assert not report.passed
    assert report.layers == ()


def test_parity_cuts_batches_of_32_by_default() -> None:
    parameters = inspect.signature(check_parity).parameters
    assert (parameters["batch_size"].default, parameters["layers"].default) == (32, False)


@pytest.mark.parametrize(("fixed", "compared"), [(2, 4), (5, 5), (1, 5), (None, 5)])
def test_parity_compares_whole_batches_of_a_fixed_size(
    tmp_path: Path, fixed: int | None, compared: int
) -> None:
    values = np.arange(5.0)[:, None]
    report = compare(
        tmp_path,
        (values, values + np.float32([[0], [0], [0], [0], [9]])),
        fixed=fixed,
        batch_size=3,
    )
    assert report.samples == compared
    assert report.largest_difference == (9 if compared == 5 else 0)


def test_parity_counts_equal_labels_ties_and_mismatches(tmp_path: Path) -> None:
    expected = [[3.0, 0, 1], [0, 5, 4], [5, -127, 4], [1, 2, 3], [2.0, 0, 0]]
    received = [[3.0, 0, 1], [0, 4, 5], [4, -127, 5], [3, 2, 1], [0, 1.0, 0]]
    report = compare(tmp_path, (expected, received), quantizers=QUANTIZED, batch_size=2)
    assert (report.samples, report.labels_equal, report.ties, report.mismatches) == (5, 1, 2, 2)
    assert report.step == 1.0
    assert report.tolerance is None
    assert not report.passed


def test_parity_takes_a_tie_within_one_quantization_step(tmp_path: Path) -> None:
    """The largest logit is 127 in both cases: a step is 1."""
    for gap, passed in ((1.0, True), (1.01, False)):
        expected, received = [[127 - gap, 127.0, -127]], [[127.0, 126.5, -127]]
        report = compare(tmp_path, (expected, received), quantizers=QUANTIZED)
        assert report.passed is passed
        assert (report.labels_equal, report.ties, report.mismatches) == (
            0,
            int(passed),
            int(not passed),
        )


def test_parity_ties_floats_within_tolerance(tmp_path: Path) -> None:
    for gap, ties in ((0.5, 1), (2.0, 0)):
        report = compare(tmp_path, ([[1e5 - gap, 1e5]], [[1e5, 0.0]]))
        assert (report.ties, report.mismatches) == (ties, 1 - ties)
        assert report.step == pytest.approx(1.0)


@pytest.mark.parametrize(("gap", "ties"), [(2, 1), (3, 0)])
def test_parity_widens_tie_by_twice_keras_noise(tmp_path: Path, gap: int, ties: int) -> None:
    """Keras's logits are ``(x - 1) * 2**16``.

    Inputs that move by 2**-20 of their value move them by 1/16.
    """
    expected = 1 + np.float32([[0, gap]]) * np.float32(2.0**-20)
    report = compare(tmp_path, (expected, [[9.0, 0.0]]), scale=2.0**16, offset=-(2.0**16))
    assert report.noise == pytest.approx(1 / 16, rel=0.01)
    assert (report.ties, report.mismatches) == (ties, 1 - ties)


def test_parity_measures_noise_where_labels_differ_only(tmp_path: Path) -> None:
    expected = [[0.0, 2.0**20], [0.0, 4.0], [2.0, 0.0], [0.0, 2.0**20]]
    received = [[0.0, 2.0**20], [4.0, 0.0], [0.0, 2.0], [0.0, 2.0**20]]
    assert compare(tmp_path, (expected, expected)).noise == 0.0
    assert compare(tmp_path, (expected, received)).noise == 4 * 2.0**-20
    assert compare(tmp_path, (expected, received), batch_size=1).noise == 4 * 2.0**-20


def test_parity_measures_noise_of_the_outputs_with_labels(tmp_path: Path) -> None:
    labels = ([[0.0, 4.0]], [[4.0, 0.0]])
    for value in ([2.0**20], [[2.0**20]], [[[0.0, 2.0**20]]]):
        assert compare(tmp_path, labels, (value, value)).noise == 4 * 2.0**-20
    wide = [[0.0, 8.0]]
    assert compare(tmp_path, labels, (wide, wide)).noise == 8 * 2.0**-20


@pytest.mark.parametrize(("shape", "labels"), [((3, 1), None), ((3, 2), 3), ((3, 2, 2), None)])
def test_parity_takes_labels_from_outputs_of_classes(
    tmp_path: Path, shape: tuple[int, ...], labels: Any
) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    assert compare(tmp_path, (x, x)).labels_equal == labels


def test_parity_counts_the_labels_of_every_output(tmp_path: Path) -> None:
    one, other = [[0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]
    report = compare(tmp_path, (one, one), (one, other))
    assert (report.samples, report.labels_equal, report.mismatches) == (2, 3, 1)


@pytest.mark.parametrize(
    ("row", "logit"),
    [
        ([0.25, 0.75], np.log(3) / 2),
        ([0.25, 0.7509], np.log(0.7509 / 0.25) / 2),
        ([0.25, 0.7491], np.log(0.7491 / 0.25) / 2),
        ([0.25, 0.752], 0.752),
        ([0.25, 0.748], 0.748),
        ([-0.25, 1.25], 1.25),
        ([0.0, 1.0], -np.log(np.finfo(np.float32).tiny) / 2),
        ([0.125, 0.125, 0.75], np.log(6) * 2 / 3),
    ],
)
def test_parity_takes_the_logarithm_of_probabilities(
    tmp_path: Path, row: list[float], logit: float
) -> None:
    report = compare(tmp_path, ([row], [row]))
    assert report.step == pytest.approx(logit * 1e-5, rel=1e-6)


def test_parity_takes_probabilities_only_where_every_row_holds_some(tmp_path: Path) -> None:
    rows = [[0.25, 0.75], [0.5, 0.75]]
    assert compare(tmp_path, (rows, rows)).step == pytest.approx(0.75e-5)
    assert compare(tmp_path, (rows, rows), batch_size=1).step == pytest.approx(0.75e-5)
    assert compare(tmp_path, (rows[:1], rows[:1])).step == pytest.approx(np.log(3) / 2 * 1e-5)
    rows = [[0.5, 0.5], [0.1, 0.9]]
    assert compare(tmp_path, (rows, rows)).step == pytest.approx(np.log(9) / 2 * 1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("recorded", [None, QUANTIZED])
def test_parity_fails_where_onnx_gives_no_finite_number(
    tmp_path: Path, bad: float, row: int, recorded: Recorded | None
) -> None:
    expected = np.ones((3, 1), np.float32)
    received = expected.copy()
    received[row] = bad
    report = compare(tmp_path, (expected, received), batch_size=1, quantizers=recorded)
    assert not np.isfinite(report.largest_difference)
    assert not report.passed


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-4),
        ({"quantizers": Recorded()}, 1e-4),
        ({"quantizers": Recorded(half=True)}, 2e-2),
        ({"half": True}, 2e-2),
        ({"quantizers": QUANTIZED}, None),
        ({"quantizers": QUANTIZED_HALF}, 5e-2),
    ],
)
def test_parity_has_the_tolerance_of_the_precision(
    tmp_path: Path, options: dict[str, Any], tolerance: float | None
) -> None:
    report = compare(tmp_path, ([[1.0]], [[1.0]]), **options)
    assert report.tolerance == tolerance
    assert report.passed


@pytest.mark.parametrize(("away", "passes"), [(0.09, True), (0.11, False)])
def test_parity_judges_fp16_file_by_its_largest_difference(
    tmp_path: Path, away: float, passes: bool
) -> None:
    """The largest output is 2, and one label of 64 differs by more than a tie."""
    expected = np.tile(np.float32([[1.0, -2.0]]), (64, 1))
    expected[0] = [0.04, 0.0]
    received = expected.copy()
    received[0, 1] += away
    report = compare(tmp_path, (expected, received), quantizers=QUANTIZED_HALF, batch_size=64)
    assert (report.mismatches, report.difference < report.allowed) == (1, True)
    assert report.passed is passes
    assert not compare(tmp_path, (expected, received), quantizers=QUANTIZED, batch_size=64).passed


@pytest.mark.parametrize(("share", "passes"), [(0.04, True), (0.06, False)])
def test_parity_bounds_outputs_without_labels(tmp_path: Path, share: float, passes: bool) -> None:
    """The values have a spread of one."""
    expected = np.tile([-1.0, 1.0], (3, 4, 1)).astype(np.float32)
    report = compare(tmp_path, (expected, expected + share), quantizers=QUANTIZED)
    assert report.difference == pytest.approx(share, rel=1e-3)
    assert (report.allowed, report.passed) == (0.05, passes)


def test_parity_widens_bound_by_twice_keras_noise(tmp_path: Path) -> None:
    """An input that moves by 2**-14 of its value moves the outputs by a tenth of their spread."""
    expected = 1 + np.tile([-1.0, 1.0], (3, 4, 1)).astype(np.float32) * 2.0**-14 * 10
    scale = 2.0**14 / 10
    outputs = (expected - 1) * scale
    for share, passes in ((0.19, True), (0.21, False)):
        report = compare(
            tmp_path,
            (expected, outputs + share),
            quantizers=QUANTIZED,
            scale=scale,
            offset=-scale,
        )
        assert report.allowed == pytest.approx(0.2, rel=0.02)
        assert report.passed is passes


def test_parity_compares_indices_as_such(tmp_path: Path) -> None:
    x = keras.Input((4,), name="e0")
    given = keras.Input((4,), name="r0")
    model = keras.Model([x, given], keras.ops.cast(x, "int32"))
    path = write(tmp_path / "model.onnx", {"e0": np.ones((1, 4)), "r0": np.ones((1, 4))}, 1)
    proto = onnx.load(path)
    cast = onnx.helper.make_node("Cast", ["r0"], ["y0"], to=onnx.TensorProto.INT32)
    proto.graph.node[-1].CopyFrom(cast)
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    onnx.save(proto, path)
    indices = np.float32([[0, 1, 2, 900]])
    assert check_parity(model, path, [indices, indices]).passed
    report = check_parity(model, path, [indices, np.float32([[0, 1, 2, 3]])])
    assert (report.difference, report.largest_difference) == (0.25, 0.0)
    assert not report.passed


def test_parity_names_shapes_that_differ(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"shape \(1, 2\) as in Keras. ONNX gives \(1, 3\)"):
        compare(tmp_path, ([[1.0, 2.0]], [[1.0, 2.0, 3.0]]))


def test_parity_names_another_number_of_outputs(tmp_path: Path) -> None:
    x = keras.Input((2,), name="e0")
    model = keras.Model(x, [layers.ReLU()(x), layers.ReLU()(x)])
    path = write(tmp_path / "model.onnx", {"r0": np.ones((1, 2), np.float32)}, 1)
    with pytest.raises(ExportError, match=r"Expected 2 outputs as in Keras\. ONNX gives 1\."):
        check_parity(model, path, np.ones((1, 2)))


def test_parity_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="at least one sample"):
        compare(tmp_path, (np.zeros((0, 2)), np.zeros((0, 2))))


def test_parity_of_outputs_without_values_is_whole(tmp_path: Path) -> None:
    nothing = np.zeros((3, 0))
    report = compare(tmp_path, (nothing, nothing), layers=True, tensors={"y0": "t0"})
    assert (report.largest_difference, report.mean_difference, report.magnitude) == (0.0, 0.0, 0.0)
    assert (report.samples, report.passed, report.labels_equal) == (3, True, None)
    assert report.layers == (
        LayerDifference(layer="y0", tensor="t0", largest=0.0, mean=0.0, magnitude=0.0),
    )


def one_layer(
    folder: Path, expected: Any, received: Any, **options: Any
) -> tuple[LayerDifference, ...]:
    return compare(
        folder, (expected, received), layers=True, tensors={"y0": "t0", "gone": "t0"}, **options
    ).layers


def test_parity_compares_layers_over_all_batches(tmp_path: Path) -> None:
    expected, received = (
        [[1.0, -8.0], [0.0, 2.0], [1.0, 4.0]],
        [[1.0, -8.5], [0.25, 2.0], [1.0, 4.0]],
    )
    (found,) = one_layer(tmp_path, expected, received, batch_size=2)
    assert found == LayerDifference(
        layer="y0", tensor="t0", largest=0.5, mean=0.75 / 6, magnitude=8.0
    )


def test_parity_compares_each_layer_with_its_tensor(tmp_path: Path) -> None:
    pairs = [([[1.0], [2.0]], [[1.0], [2.5]]), ([[4.0], [3.0]], [[3.0], [3.0]])]
    found = compare(tmp_path, *pairs, layers=True, tensors={"y1": "t1", "y0": "t0"}).layers
    assert [(x.layer, x.tensor, x.largest, x.magnitude) for x in found] == [
        ("y1", "t1", 1, 4),
        ("y0", "t0", 0.5, 2),
    ]
    found = compare(tmp_path, *pairs, layers=True, tensors={"y0": "y0", "y1": "y0"}).layers
    assert [(x.layer, x.largest) for x in found] == [("y0", 0.5), ("y1", 3.0)]
    assert compare(tmp_path, *pairs, tensors={"y0": "t0"}).layers == ()


SOME = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)


def layer_report(
    folder: Path, expected: np.ndarray, received: np.ndarray
) -> tuple[LayerDifference, ...]:
    """Compare a layer's output with a tensor of another shape.

    The model's own output stands beside them.
    """
    names = {"e0": expected, "r0": received}
    inputs = {name: keras.Input(x.shape[1:], name=name) for name, x in names.items()}
    hidden = layers.Identity(name="hidden")(inputs["e0"])
    model = keras.Model(list(inputs.values()), [layers.Flatten()(hidden)])
    path = write(folder / "model.onnx", names, 1, tensors={"hidden": "r0"})
    proto = onnx.load(path)
    del proto.graph.node[:]
    proto.graph.node.append(onnx.helper.make_node("Flatten", ["e0"], ["y0"], axis=1))
    onnx.save(proto, path)
    return check_parity(model, path, [expected, received], layers=True).layers


@pytest.mark.parametrize(
    ("expected", "received"),
    [
        (SOME, SOME),
        (SOME, SOME.transpose(0, 3, 1, 2)),
        (SOME[..., :3, :], SOME[..., :3, :].transpose(0, 3, 1, 2)),
        (SOME[:, 0], SOME[:, 0].transpose(0, 2, 1)),
        (SOME[:, 0], SOME[:, 0]),
        (SOME.reshape(2, -1), SOME.transpose(0, 3, 1, 2)),
        (SOME.reshape(2, -1), SOME),
        (SOME.reshape(2, 12, 5), SOME.transpose(0, 3, 1, 2)),
        (SOME, SOME.reshape(2, -1)),
        (SOME[:, 0, 0], SOME[:, 0, 0]),
    ],
    ids=[
        "nhwc",
        "nchw",
        "square",
        "ncw",
        "nwc",
        "flat of nchw",
        "flat",
        "rows of nchw",
        "from flat",
        "vector",
    ],
)
def test_parity_accepts_either_axis_order(
    tmp_path: Path, expected: np.ndarray, received: np.ndarray
) -> None:
    (found,) = layer_report(tmp_path, expected, received)
    assert (found.layer, found.tensor, found.largest, found.mean) == ("hidden", "r0", 0.0, 0.0)
    assert found.magnitude == np.abs(expected).max()


def test_parity_skips_layer_with_unfit_tensor(tmp_path: Path) -> None:
    assert layer_report(tmp_path, SOME, SOME.transpose(0, 2, 1, 3)) == ()
    assert layer_report(tmp_path, SOME, SOME[..., :2]) == ()
    assert layer_report(tmp_path, SOME[:, 0], SOME[:, 0, :2]) == ()


def test_parity_chooses_axis_order_of_least_difference(tmp_path: Path) -> None:
    cube = np.arange(64, dtype=np.float32).reshape(1, 4, 4, 4)
    (found,) = layer_report(tmp_path, cube, cube.transpose(0, 3, 1, 2) + 0.5)
    assert (found.largest, found.mean) == (0.5, 0.5)
    (found,) = layer_report(tmp_path, cube, cube + 0.25)
    assert (found.largest, found.mean) == (0.25, 0.25)


def report(**values: Any) -> ParityReport:
    """Return a report of a float model that passes, but for ``values``."""
    return ParityReport(
        **{
            "samples": 4,
            "largest_difference": 0.0,
            "mean_difference": 0.0,
            "magnitude": 2.0,
            "labels_equal": None,
            "ties": 0,
            "mismatches": 0,
            "step": 0.0,
            "noise": 0.0,
            "tolerance": 0.5,
            **values,
        }
    )


@pytest.mark.parametrize(
    ("values", "passed"),
    [
        ({}, True),
        ({"largest_difference": 1.0}, True),
        ({"largest_difference": 1.001}, False),
        ({"largest_difference": 1.001, "tolerance": None}, True),
        ({"mismatches": 1}, False),
        ({"mismatches": 1, "tolerance": None}, False),
        ({"mismatches": 1, "labels_decide": False}, True),
        ({"ties": 3}, True),
        ({"largest_difference": float("nan"), "tolerance": None}, False),
        ({"magnitude": 0.0, "largest_difference": 0.5e-6}, True),
        ({"magnitude": 0.0, "largest_difference": 0.51e-6}, False),
    ],
)
def test_a_report_passes_within_its_tolerance(values: dict[str, Any], passed: bool) -> None:
    assert report(**values).passed is passed
    assert report(**values).to_dict()["passed"] is passed


def test_a_report_is_plain_data_and_one_sentence() -> None:
    layer = LayerDifference(layer="a", tensor="t", largest=1.0, mean=0.5, magnitude=2.0)
    plain = report(layers=(layer,)).to_dict()
    assert plain["samples"] == 4
    assert plain["layers"] == (
        {"layer": "a", "tensor": "t", "largest": 1.0, "mean": 0.5, "magnitude": 2.0},
    )
    assert (
        str(report(largest_difference=0.12345))
        == "agrees with Keras on 4 samples: largest difference 0.123 (0 of the spread; allowed: 1)"
    )
    text = (
        "does NOT agree with Keras on 4 samples: largest difference 3 (0 of the spread; allowed: 1)"
        ", labels equal on 2 (1 ties)"
    )
    assert str(report(largest_difference=3.0, labels_equal=2, ties=1)) == text


def difference(name: str, largest: float, magnitude: float) -> LayerDifference:
    return LayerDifference(layer=name, tensor=name, largest=largest, mean=0.0, magnitude=magnitude)


def test_first_difference_is_relative_to_the_magnitude() -> None:
    found = report(
        layers=(
            difference("dead", 1e-15, 0.0),
            difference("edge", 1.0, 1000.0),
            difference("beyond", 1.1, 1000.0),
            difference("half", 1.0, 2.0),
        )
    )
    assert found.first_difference() == found.layers[2]
    assert found.first_difference(0.5) is None
    assert found.first_difference(0.4) == found.layers[3]
    dead = report(layers=(difference("dead", 2e-15, 0.0),))
    assert dead.first_difference() == dead.layers[0]
    assert report().first_difference() is None


@pytest.mark.parametrize(("quantizers", "noise"), [(QUANTIZED, 2.0), (None, 0.0)])
def test_parity_nudges_a_quantized_model_until_an_output_moves(
    tmp_path: Path, quantizers: Recorded | None, noise: float
) -> None:
    """The first quantizer reverts small nudges of 1.0.

    Its edge is four millionths away.
    """
    values, other = np.float32([[1.0, 0.0]]), np.float32([[0.0, 1.0]])
    x, r = keras.Input((2,), name="e0"), keras.Input((2,), name="r0")
    quantizer = TensorQuantizer(name="q", range_policy="frozen")
    model = keras.Model([x, r], layers.Rescaling(201.0, name="y0")(quantizer(x)))
    quantizer.amax = 127 / (100.5 * (1 - 4e-6))
    path = write(tmp_path / "model.onnx", {"e0": values, "r0": other}, 1, quantizers=quantizers)
    report = check_parity(model, path, [values, other])
    assert report.labels_equal == 0
    assert report.noise == pytest.approx(noise, rel=1e-3)
