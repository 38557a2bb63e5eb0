"""ONNX Runtime as the reference, in the file's layout, types, order."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qat_lib.errors import ExportError
from qat_lib.export.session import ReferenceSession
from qat_lib.preprocessing import Preprocessing


def write(folder: Path, text: str) -> Path:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}'), path)
    return path


def session(
    folder: Path, text: str, *, extra: tuple[str, ...] = (), **metadata: str
) -> ReferenceSession:
    return ReferenceSession(write(folder, text), extra_outputs=extra, metadata=metadata)


TWO = """(float[N,2] a, float[N,2] b) => (float[N,2] difference, float[N,2] sum)
    { sum = Add(a, b) difference = Sub(a, b) twice = Add(sum, sum) four = Add(twice, twice) }"""
A, B = np.float32([[1, 2], [3, 4]]), np.float32([[5, 7], [9, 11]])


def test_session_gives_outputs_in_the_files_order(tmp_path: Path) -> None:
    difference, total = session(tmp_path, TWO).run([A, B])
    np.testing.assert_array_equal(difference, A - B)
    np.testing.assert_array_equal(total, A + B)


@pytest.mark.parametrize(
    "extra",
    [
        ("twice",),
        ("four", "twice"),
        ("sum", "twice"),
        ("difference", "sum"),
        ("twice", "sum", "four"),
    ],
)
def test_session_hands_out_inner_tensors_beside_the_outputs(
    tmp_path: Path, extra: tuple[str, ...]
) -> None:
    reference = session(tmp_path, TWO, extra=extra)
    outputs = reference.run([A, B])
    assert [y.tolist() for y in outputs] == [(A - B).tolist(), (A + B).tolist()]
    values = {"difference": A - B, "sum": A + B, "twice": 2 * (A + B), "four": 4 * (A + B)}
    for name in extra:
        np.testing.assert_array_equal(reference.extra(name), values[name])
    reference.run([B, B])
    again = {"difference": 0 * B, "sum": 2 * B, "twice": 4 * B, "four": 8 * B}
    np.testing.assert_array_equal(reference.extra(extra[0]), again[extra[0]])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [("[N,2]", None), ("[3,2]", 3), ("[1,2]", 1), ("[N,5]", None), ("[]", None)],
)
def test_session_knows_a_fixed_batch(tmp_path: Path, shape: str, expected: int | None) -> None:
    text = f"(float{shape} a, float[7] b) => (float{shape} y, float[7] z) {{ y = Identity(a) z = Identity(b) }}"
    assert session(tmp_path, text).fixed_batch == expected


def test_session_without_batch_axis_is_not_fixed(tmp_path: Path) -> None:
    assert (
        session(
            tmp_path, "() => (float[1] y) { y = Constant <value = float[1] {3}> () }"
        ).fixed_batch
        is None
    )
    text = "(float[3,2] a, float b) => (float[3,2] y, float z) { y = Identity(a) z = Identity(b) }"
    assert session(tmp_path, text).fixed_batch == 3


@pytest.mark.parametrize("count", [0, 1, 3])
def test_session_wants_an_array_for_each_input(tmp_path: Path, count: int) -> None:
    with pytest.raises(ExportError, match=rf"Expected 2 input arrays\. Received: {count}\."):
        session(tmp_path, TWO).model_inputs([A] * count)


def test_session_hands_keras_the_batch_as_it_is(tmp_path: Path) -> None:
    found = session(tmp_path, TWO).model_inputs([A, B])
    assert found[0] is A
    assert found[1] is B


SHAPES = """(float[N,5,3,4] image, float[N,3,4,5] plain) => (float[N,5,3,4] y, float[N,3,4,5] z)
    { y = Identity(image) z = Identity(plain) }"""


def test_session_turns_the_inputs_that_are_channels_first(tmp_path: Path) -> None:
    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    reference = session(tmp_path, SHAPES, layout=json.dumps({"image": "NCHW", "plain": "NHWC"}))
    turned, plain = reference.run([x, -x])
    np.testing.assert_array_equal(turned, x.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(plain, -x)


def test_session_takes_images_that_are_channels_first_already(tmp_path: Path) -> None:
    text = "(float[N,3,2,2] x) => (float[N,3,2,2] y) { y = Identity(x) }"
    raw = Preprocessing(image_shape=(2, 2, 3), mean=(0.1, 0.2, 0.3))
    metadata = {
        "layout": json.dumps({"x": "NCHW"}),
        "preprocessing": json.dumps(raw.to_dict()),
        "preprocessing_embedded": "true",
    }
    reference = ReferenceSession(write(tmp_path, text), metadata=metadata, layout="NCHW")
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)
    np.testing.assert_array_equal(reference.run([images])[0], images)
    (prepared,) = reference.model_inputs([images])
    expected = raw.apply(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(prepared, expected)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("float", np.float32),
        ("float16", np.float16),
        ("uint8", np.uint8),
        ("int8", np.int8),
        ("int32", np.int32),
        ("int64", np.int64),
        ("bool", np.bool_),
    ],
)
def test_session_feeds_the_type_that_the_file_wants(tmp_path: Path, kind: str, dtype: Any) -> None:
    reference = session(tmp_path, f"({kind}[N,2] x) => ({kind}[N,2] y) {{ y = Identity(x) }}")
    (y,) = reference.run([np.float64([[0, 1], [1, 0]])])
    assert y.dtype == dtype
    assert y.tolist() == [[0, 1], [1, 0]]


RAW = Preprocessing(image_shape=(2, 2, 1), mean=(0.5,), std=(0.25,))


@pytest.mark.parametrize("embedded", ["true", "false", None])
def test_session_preprocesses_for_keras_what_the_file_takes_raw(
    tmp_path: Path, embedded: str | None
) -> None:
    metadata = {"preprocessing": json.dumps(RAW.to_dict())}
    if embedded is not None:
        metadata["preprocessing_embedded"] = embedded
    reference = session(
        tmp_path, "(uint8[N,2,2,1] x) => (uint8[N,2,2,1] y) { y = Identity(x) }", **metadata
    )
    images = np.uint8([0, 51, 102, 255]).reshape(1, 2, 2, 1)
    (found,) = reference.model_inputs([images])
    np.testing.assert_array_equal(found, RAW.apply(images) if embedded == "true" else images)


def test_session_refuses_preprocessing_that_is_none(tmp_path: Path) -> None:
    text = "(uint8[N,2] x) => (uint8[N,2] y) { y = Identity(x) }"
    with pytest.raises(ExportError, match=r"qatline\.preprocessing"):
        session(tmp_path, text, preprocessing_embedded="true", preprocessing="{")


def test_session_says_what_onnx_runtime_refuses(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"ONNX Runtime can't load .*model\.onnx"):
        session(tmp_path, "(float[N,2] x) => (float[N,2] y) { y = NoSuchOperator(x) }")
    with pytest.raises(ExportError, match="can't run the file on this batch"):
        session(tmp_path, TWO).run([A, np.ones((2, 3))])


def test_session_tells_a_failure_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExportError, match="can't run the file on this batch"):
        session(tmp_path, TWO).run([np.ones((2, 2)), np.ones((3, 2))])
    assert capfd.readouterr().err == ""


def test_session_is_silent_about_weights_that_nothing_reads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path, "(float[N,2] x) => (float[N,2] y) <float[2] unread = {1, 2}> { y = Identity(x) }"
    )
    ReferenceSession(path, metadata={}).run([A])
    assert capfd.readouterr().err == ""


def test_session_finds_weights_beside_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path, "(float[N,64] x) => (float[N,64] y) { w = Identity(weight) y = Add(x, w) }"
    )
    proto = onnx.load(path)
    weight = np.arange(64, dtype=np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    onnx.save(proto, path, save_as_external_data=True, location="weights.data", size_threshold=0)
    reference = ReferenceSession(path, extra_outputs=("w",), metadata={})
    np.testing.assert_array_equal(
        reference.run([np.ones((1, 64), np.float32)])[0], weight[None] + 1
    )
    np.testing.assert_array_equal(reference.extra("w"), weight)
