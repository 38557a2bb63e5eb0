"""Engines over batches of the reader: any shape, one input or several, one output or several."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

from qat_lib.engines import BuildSpec, build_engine, load_engine
from qat_lib.engines.check import check_engine
from qat_lib.engines.spec import ShapeProfile
from qat_lib.errors import DataError
from qatline.components.evaluation.inference import EngineRunner

ONE = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[N,3] x) => (float[N,3] y) { y = Neg (x) }"""
SEVERAL = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[N,3] a, float[N,2,2] b) => (float[N,3] y, float[N,2,2] z)
    { y = Neg (a)  z = Abs (b) }"""
IMAGES = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[N,3,4,5] x) => (float[N,3,4,5] y) { y = Neg (x) }"""

OPEN = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[N,M,3] x) => (float[N,M,3] y) { y = Neg (x) }"""

Shapes = tuple[int, ...] | dict[str, tuple[int, ...]]


def built(folder: Path, graph: str, *, embedded: bool = False) -> Path:
    model = onnx.parser.parse_model(graph)
    if embedded:
        model.metadata_props.add(key="qatline.preprocessing_embedded", value="true")
    onnx.save(model, folder / "model.onnx")
    profile = ShapeProfile(minimum=(1, 2, 3), optimum=(4, 5, 3), maximum=(4, 5, 3))
    shapes = {"x": profile} if graph == OPEN else {}
    spec = BuildSpec(backend="onnxruntime", max_batch_size=4, shapes=shapes)
    return build_engine(folder / "model.onnx", spec, output=folder / "model.engine").path


@contextmanager
def runner(folder: Path, graph: str, shapes: Shapes) -> Iterator[EngineRunner]:
    with load_engine(built(folder, graph)) as engine:
        yield EngineRunner(engine, shapes)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("samples", [1, 4, 11])
def test_one_input_gives_an_array(tmp_path: Path, samples: int) -> None:
    x = floats(samples, 3)
    with runner(tmp_path, ONE, (3,)) as run:
        np.testing.assert_array_equal(run(x), -x)
        assert (run.largest_batch, run.nearest_batch(9), run.output) == (4, 4, "y")


@pytest.mark.parametrize("samples", [1, 4, 11])
def test_several_inputs_and_outputs_have_names(tmp_path: Path, samples: int) -> None:
    batch = {"b": floats(samples, 2, 2), "a": floats(samples, 3)}
    with runner(tmp_path, SEVERAL, {"a": (3,), "b": (2, 2)}) as run:
        outputs = run(batch)
        assert isinstance(outputs, dict)
        np.testing.assert_array_equal(outputs["y"], -batch["a"])
        np.testing.assert_array_equal(outputs["z"], np.abs(batch["b"]))


def test_images_meet_the_layout_of_the_engine(tmp_path: Path) -> None:
    x = floats(6, 4, 5, 3)
    with runner(tmp_path, IMAGES, (4, 5, 3)) as run:
        np.testing.assert_array_equal(run(x), -np.moveaxis(x, -1, 1))


def test_open_sizes_fit_any(tmp_path: Path) -> None:
    with load_engine(built(tmp_path, OPEN)) as engine:
        run = EngineRunner(engine, (-1, 3))
        for length in (2, 5):
            x = floats(4, length, 3)
            np.testing.assert_array_equal(run(x), -x)
        with pytest.raises(DataError, match="takes inputs of shape"):
            EngineRunner(engine, (-1, 4))


@pytest.mark.parametrize(
    ("graph", "shapes", "message"),
    [
        (ONE, (4,), r"takes inputs of shape \(3,\), the data set has \(4,\) per sample"),
        (IMAGES, (5, 4, 3), r"takes inputs of shape \(3, 4, 5\), the data set has \(5, 4, 3\)"),
        (SEVERAL, (3,), r"has 2 inputs \(a, b\), the data has one"),
        (SEVERAL, {"a": (3,), "c": (2, 2)}, "has the inputs a, b, the data has a, c"),
    ],
)
def test_data_of_another_shape_is_refused(
    tmp_path: Path, graph: str, shapes: Shapes, message: str
) -> None:
    with pytest.raises(DataError, match=message), runner(tmp_path, graph, shapes):
        pass


def test_engines_that_preprocess_take_raw_data(tmp_path: Path) -> None:
    with load_engine(built(tmp_path, ONE, embedded=True)) as engine:
        with pytest.raises(DataError, match=r"takes raw data \(x.*without embed_preprocessing"):
            EngineRunner(engine, (3,))
        assert EngineRunner(engine, (3,), raw=True).largest_batch == 4


def test_check_of_an_engine_takes_inputs_by_name(tmp_path: Path) -> None:
    path, onnx_file = built(tmp_path, SEVERAL), tmp_path / "model.onnx"
    inputs = {"a": floats(11, 3), "b": floats(11, 2, 2)}
    found = check_engine(path, onnx_file, requests=1, inputs=inputs)
    assert (found.passed, found.samples) == (True, 11)
    for wrong, message in (
        (inputs["a"], "Expected arrays for the inputs a, b. Received one array"),
        ({"a": inputs["a"]}, "Expected arrays for the inputs a, b. Received: a"),
        ({**inputs, "b": inputs["b"][:9]}, "as many samples of each input"),
    ):
        refused = check_engine(path, onnx_file, requests=1, inputs=wrong)
        assert not refused.passed
        assert message in refused.message
