"""The Keras side of a parity check: inputs, batches, layer outputs."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from qat_lib.errors import ExportError
from qat_lib.export import comparing
from qat_lib.keras.export.keras_reference import KerasReference

A, B = np.arange(10, dtype=np.float32).reshape(5, 2), -np.arange(15, dtype=np.float32).reshape(5, 3)


def two_inputs(form: Any = list) -> keras.Model:
    """Return a model that sums ``second`` (2 values) and ``first`` (3 values)."""
    second, first = keras.Input((2,), name="second"), keras.Input((3,), name="first")
    outputs = [layers.Identity(name="y2")(second), layers.Identity(name="y3")(first)]
    inputs = {"second": second, "first": first} if form is dict else form([second, first])
    return keras.Model(inputs, outputs)


def one_input() -> keras.Model:
    x = keras.Input((2,), name="x")
    return keras.Model(x, layers.Identity(name="y")(x))


def batches(model: keras.Model, *args: Any, **options: Any) -> Any:
    return comparing.batches(KerasReference(model, []), *args, **options)


def shapes(parts: Any) -> list[list[tuple[int, ...]]]:
    return [[x.shape for x in part] for part in parts]


@pytest.mark.parametrize(
    ("size", "whole", "sizes"),
    [
        (2, False, [2, 2, 1]),
        (2, True, [2, 2]),
        (5, False, [5]),
        (5, True, [5]),
        (6, False, [5]),
        (6, True, []),
        (1, True, [1, 1, 1, 1, 1]),
    ],
)
def test_batches_cut_an_array(size: int, whole: bool, sizes: list[int]) -> None:
    found = list(batches(one_input(), A, size, whole=whole))
    assert [len(part) for (part,) in found] == sizes
    if sum(sizes) == 5:
        np.testing.assert_array_equal(np.concatenate([part for (part,) in found]), A)


def test_batches_of_many_samples_are_whole() -> None:
    assert shapes(batches(one_input(), np.zeros((700, 2)), 300, whole=True)) == [
        [(300, 2)],
        [(300, 2)],
    ]


@pytest.mark.parametrize("form", [list, tuple])
def test_batches_take_an_array_for_each_input(form: Any) -> None:
    found = list(batches(two_inputs(), form([A, B]), 3, whole=False))
    assert shapes(found) == [[(3, 2), (3, 3)], [(2, 2), (2, 3)]]
    np.testing.assert_array_equal(found[1][1], B[3:])


def test_batches_take_an_iterable_of_batches() -> None:
    data = [[A, B], [A[:1], B[:1]]]
    assert shapes(batches(two_inputs(), iter(data), 4, whole=False)) == [
        [(4, 2), (4, 3)],
        [(1, 2), (1, 3)],
        [(1, 2), (1, 3)],
    ]
    assert shapes(batches(one_input(), iter([A, A[:2]]), 9, whole=False)) == [[(5, 2)], [(2, 2)]]


@pytest.mark.parametrize("form", [list, dict])
@pytest.mark.parametrize("iterable", [False, True])
def test_batches_order_dict_by_inputs(form: Any, iterable: bool) -> None:
    """Keras orders the inputs of a dict by name."""
    data = {"first": B, "second": A}
    (part,) = batches(two_inputs(form), iter([data]) if iterable else data, 8, whole=False)
    np.testing.assert_array_equal(part[0], B if form is dict else A)
    np.testing.assert_array_equal(part[1], A if form is dict else B)


@pytest.mark.filterwarnings("ignore:When providing .inputs. as a dict")
def test_batches_take_the_names_of_the_inputs() -> None:
    inputs = {"k": keras.Input((2,), name="second"), "j": keras.Input((3,), name="first")}
    model = keras.Model(inputs, [layers.Identity()(inputs["k"]), layers.Identity()(inputs["j"])])
    (by_key,) = batches(model, {"k": A, "j": B}, 8, whole=False)
    (by_name,) = batches(model, {"second": A, "first": B}, 8, whole=False)
    assert [x.shape for x in by_key] == [x.shape for x in by_name] == [(5, 3), (5, 2)]


@pytest.mark.parametrize("names", [["first"], ["first", "second", "third"], ["first", "other"]])
def test_batches_refuse_other_names(names: list[str]) -> None:
    with pytest.raises(ExportError) as raised:
        list(batches(two_inputs(), dict.fromkeys(names, A), 8, whole=False))
    assert (
        str(raised.value)
        == f"Expected arrays for the inputs ['first', 'second']. Received: {names}."
    )


def test_batches_refuse_inputs_of_other_lengths() -> None:
    with pytest.raises(ExportError, match=r"as many samples for each input\. Received: \[4, 5\]"):
        list(batches(two_inputs(), [A, B[:4]], 8, whole=False))


@pytest.mark.parametrize("data", [np.zeros((0, 2)), [], 3.0])
def test_batches_of_nothing_are_none(data: Any) -> None:
    assert list(batches(one_input(), data, 8, whole=False)) == []


def chain() -> keras.Model:
    """Return a model with a shared layer and a two-output layer."""
    x = keras.Input((4,), name="x")
    a = layers.Rescaling(2.0, name="twice")(x)
    shared = layers.Rescaling(3.0, name="shared")
    b = shared(shared(a))
    parts = Split(name="split")(b)
    return keras.Model(x, [layers.Rescaling(1.0, 5.0, name="end")(parts[0]), parts[1]])


class Split(layers.Layer):
    def call(self, x: Any) -> list[Any]:
        return [x[:, :2], x[:, 2:]]


def test_keras_reference_lists_outputs_before_layers() -> None:
    x = np.float32([[1, 2, 3, 4]])
    reference = KerasReference(chain(), ["end", "gone", "split", "shared", "twice"])
    assert reference.layers == ["end", "twice"]
    assert reference.output_count == 2
    found = [y.tolist() for y in reference.run([x])]
    assert found == [[[23, 41]], [[54, 72]], [[23, 41]], [[2, 4, 6, 8]]]


def test_keras_reference_without_layers_is_the_model_itself() -> None:
    model = chain()
    reference = KerasReference(model, [])
    assert reference.model is model
    assert reference.layers == []
    assert [y.tolist() for y in reference.run([np.ones((1, 4), np.float32)])] == [
        [[23, 23]],
        [[18, 18]],
    ]


@pytest.mark.parametrize("form", [list, tuple, dict])
def test_keras_reference_gives_each_input_its_array(form: Any) -> None:
    arrays = [B, A] if form is dict else [A, B]
    found = KerasReference(two_inputs(form), ["y3"]).run(arrays)
    for y, expected in zip(found, [A, B, B], strict=True):
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("listed", [False, True])
def test_keras_reference_runs_models_of_one_input(listed: bool) -> None:
    x = keras.Input((2,), name="x")
    for model in (
        keras.Sequential([x, layers.Identity()]),
        keras.Model([x] if listed else x, layers.Identity()(x)),
    ):
        np.testing.assert_array_equal(KerasReference(model, []).run([A])[0], A)


def test_keras_reference_runs_in_inference() -> None:
    x = keras.Input((64,))
    (y,) = KerasReference(keras.Model(x, layers.Dropout(0.5)(x)), []).run(
        [np.ones((2, 64), np.float32)]
    )
    assert y.tolist() == np.ones((2, 64)).tolist()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8", "bool"])
def test_keras_reference_takes_numbers(dtype: str) -> None:
    (y,) = KerasReference(one_input(), []).run([np.ones((3, 2), dtype)])
    assert y.tolist() == [[1, 1]] * 3


@pytest.mark.parametrize(
    "x",
    [
        np.ones((3, 3), np.float32),
        np.ones((3,), np.float32),
        np.ones((3, 2, 1), np.float32),
        np.full((3, 2), "1"),
        np.full((3, 2), 1j),
        np.full((3, 2), None),
    ],
    ids=lambda x: f"{x.dtype.kind}{x.shape}",
)
def test_keras_reference_refuses_what_does_not_fit(x: np.ndarray) -> None:
    with pytest.raises(ExportError, match=r"of shape \(None, 2\) for the input 'x'") as raised:
        KerasReference(one_input(), []).run([x])
    assert f"Received {x.dtype} of shape {x.shape}" in str(raised.value)


def test_keras_reference_names_the_input_that_does_not_fit() -> None:
    with pytest.raises(ExportError, match="for the input 'first'"):
        KerasReference(two_inputs(), []).run([A, A])


def test_keras_reference_takes_any_size_along_an_open_axis() -> None:
    x = keras.Input((None, 2), name="x")
    reference = KerasReference(keras.Model(x, layers.Identity()(x)), [])
    assert reference.run([np.ones((3, 7, 2), np.float32)])[0].shape == (3, 7, 2)
    with pytest.raises(ExportError, match=r"\(None, None, 2\)"):
        reference.run([np.ones((3, 2, 7), np.float32)])
