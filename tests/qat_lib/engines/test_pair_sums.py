"""INT8 sums of 16 bits: which layers overflow them, and engines that don't."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qat_lib.engines import BuildSpec, build_engine, load_engine
from qat_lib.engines.onnxruntime import reference_session
from qat_lib.engines.openvino_forms import sound_form
from qat_lib.engines.pair_sums import largest_sum, overflowing_nodes
from qat_lib.onnx_view.graph import OnnxGraph

FORMS: dict[str, dict[str, Any]] = {
    "Conv": {"weights": (16, 8, 3, 3), "x": (2, 8, 9, 9), "pads": [1, 1, 1, 1]},
    "Conv 1x1": {"weights": (16, 10, 1, 1), "x": (2, 10, 9, 9)},
    "Conv of three channels": {"weights": (16, 3, 3, 3), "x": (2, 3, 9, 9), "strides": [2, 2]},
    "Conv dilated": {"weights": (16, 8, 3, 3), "x": (1, 8, 12, 12), "dilations": [2, 2]},
    "Conv 1-D": {"weights": (16, 8, 3), "x": (2, 8, 20)},
    "Conv 3-D": {"weights": (16, 8, 3, 3, 3), "x": (1, 8, 6, 6, 6)},
    "Conv grouped": {"weights": (32, 8, 3, 3), "x": (1, 32, 9, 9), "group": 4},
    "Conv in groups of three": {"weights": (8, 3, 3, 3), "x": (1, 6, 9, 9), "group": 2},
    "Conv depthwise": {"weights": (32, 1, 3, 3), "x": (1, 32, 9, 9), "group": 32},
    "ConvTranspose": {"weights": (16, 8, 3, 3), "x": (1, 16, 6, 6), "strides": [2, 2]},
    "MatMul": {"weights": (64, 32), "x": (2, 5, 64)},
    "Gemm": {"weights": (32, 65), "x": (2, 65), "transB": 1},
}
"""Shapes of weights and input, and attributes."""
NEVER_OVERFLOWING = ("Conv depthwise",)
STORED_AS_FLOATS = ("Conv 1x1",)
"""Forms whose engines are built from weights in float32, see ``quantize_in_graph``."""
IN_WINDOWS: dict[str, dict[str, Any]] = {
    "Conv of one channel": {"weights": (16, 1, 3, 3), "x": (2, 1, 9, 9)},
    "Conv depthwise, multiplied": {"weights": (32, 1, 3, 3), "x": (1, 16, 9, 9), "group": 16},
}
"""Forms whose sums overflow in ONNX Runtime alone."""


def write(path: Path, form: str, most: int, *, unsigned: bool = False) -> Path:
    """Write a graph of one layer whose INT8 weights are at most ``most``."""
    given = dict((FORMS | IN_WINDOWS)[form])
    weights, shape = given.pop("weights"), given.pop("x")
    op = form.partition(" ")[0]
    axis = 1 if op in ("ConvTranspose", "MatMul") else 0
    channels = weights[axis]
    integers = np.random.default_rng(0).integers(-most, most + 1, weights).astype(np.int8)
    constants = {
        "scale": np.float32(1),
        "zero": np.uint8(0) if unsigned else np.int8(0),
        "integers": integers,
        "scales": np.full(channels, 0.01, np.float32),
        "zeros": np.zeros(channels, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["integers", "scales", "zeros"], ["w"], axis=axis),
        helper.make_node(op, ["d", "w"], ["y"], name="layer", **given),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, path)
    return path


def quantize_in_graph(path: Path) -> Path:
    """Store the weights in float32 in front of a Q node, as graphs for TensorRT 8.6 do."""
    model = onnx.load(path)
    (stored,) = [t for t in model.graph.initializer if t.name == "integers"]
    floats = numpy_helper.to_array(stored) * np.float32(0.01)
    stored.CopyFrom(numpy_helper.from_array(floats, "floats"))
    (axis,) = [a.i for node in model.graph.node for a in node.attribute if a.name == "axis"][:1]
    inputs = ["floats", "scales", "zeros"]
    quantize = helper.make_node("QuantizeLinear", inputs, ["integers"], axis=axis)
    model.graph.node.insert(0, quantize)
    onnx.save(model, path)
    return path


def overflowing(path: Path) -> list[str]:
    return [node.name for node in overflowing_nodes(OnnxGraph.load(path))]


@pytest.mark.parametrize("form", FORMS)
def test_overflowing_nodes_by_weights(form: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    assert overflowing(write(path, form, 64)) == []
    expected = [] if form in NEVER_OVERFLOWING else ["layer"]
    assert overflowing(write(path, form, 127)) == expected
    assert overflowing(quantize_in_graph(path)) == expected


@pytest.mark.parametrize("form", [*FORMS, *IN_WINDOWS])
@pytest.mark.parametrize("unsigned", [False, True], ids=["signed", "unsigned"])
def test_onnx_runtime_engines_do_not_saturate(form: str, unsigned: bool, tmp_path: Path) -> None:
    """On CPUs without VNNI; others never do."""
    path = write(tmp_path / "m.onnx", form, 127, unsigned=unsigned)
    model = onnx.load(path)
    (shape,) = [[d.dim_value for d in x.type.tensor_type.shape.dim] for x in model.graph.input]
    x = np.random.default_rng(1).uniform(100, 127, shape).astype(np.float32)
    y = reference_session(path).run(None, {"x": x})[0]
    step = np.float32(np.abs(y).max() / 127)
    # A kernel with INT8 sums needs an INT8 output.
    constants = {"step": step, "middle": np.uint8(128) if unsigned else np.int8(0)}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    model.graph.node.extend(
        [
            helper.make_node("QuantizeLinear", ["y", "step", "middle"], ["yq"]),
            helper.make_node("DequantizeLinear", ["yq", "step", "middle"], ["out"]),
        ]
    )
    model.graph.output[0].name = "out"
    onnx.save(model, path)
    spec = BuildSpec(backend="onnxruntime", max_batch_size=2)
    artifact = build_engine(path, spec, output=tmp_path / "m.engine", verify=False)
    with load_engine(artifact.path) as engine:
        (found,) = engine.infer({"x": x}).values()
    (expected,) = reference_session(path).run(None, {"x": x})
    assert np.abs(found - expected).max() <= 1.01 * step


def test_neighbours_in_a_window_cross_positions(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "Conv of three channels", 64)
    model = onnx.load(path)
    (weights,) = [t for t in model.graph.initializer if t.name == "integers"]
    integers = np.zeros((16, 3, 3, 3), np.int8)
    integers[0, 2, 0, 0] = integers[0, 0, 0, 1] = 127  # the last channel, and the next position
    weights.CopyFrom(numpy_helper.from_array(integers, "integers"))
    onnx.save(model, path)
    graph = OnnxGraph.load(path)
    assert not list(overflowing_nodes(graph))
    assert [node.name for node in overflowing_nodes(graph, in_window=True)] == ["layer"]


def test_overflowing_nodes_need_quantized_activations(tmp_path: Path) -> None:
    model = onnx.load(write(tmp_path / "m.onnx", "Conv", 127))
    model.graph.node[-1].input[0] = "x"
    onnx.save(model, tmp_path / "m.onnx")
    assert overflowing(tmp_path / "m.onnx") == []


def test_largest_sum_pairs_neighbours_of_one_sign() -> None:
    assert largest_sum(np.array([[100, 28, 5]], np.int8)) == 128
    assert largest_sum(np.array([[100, -28, -127]], np.int8)) == 127
    assert largest_sum(np.array([[1, 100, 100, 2]], np.int8)) == 102
    assert largest_sum(np.array([[-127, -127]], np.int8)) == 254


@pytest.mark.parametrize("in_graph", [False, True])
def test_sound_form_stores_overflowing_weights_as_floats(in_graph: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "Conv", 127)
    integers = OnnxGraph.load(path).weights("integers")
    assert integers is not None
    if in_graph:
        quantize_in_graph(path)
    assert sound_form(path, "vnni").data is None
    form = sound_form(path, "avx2")
    assert form.floats == ("layer",)
    assert form.data is not None
    changed = onnx.load_model_from_string(form.data)
    tensors = {t.name: numpy_helper.to_array(t) for t in changed.graph.initializer}
    np.testing.assert_allclose(tensors["w"], integers * 0.01, rtol=1e-6)


PROGRAM = """
import json, sys
import numpy as np, onnxruntime
from qat_lib.engines import BuildSpec, build_engine, cpu_kind, load_engine
from qat_lib.engines import openvino
from qat_lib.engines.openvino_forms import SoundForm
assert cpu_kind() == "avx2"
changed, found = openvino.sound_form, []
for path, unsigned, as_it_is in json.load(sys.stdin):
    openvino.sound_form = (lambda *_: SoundForm()) if as_it_is else changed
    spec = BuildSpec(backend="openvino", max_batch_size=1)
    artifact = build_engine(path, spec, output=path + ".engine", verify=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (value,) = session.get_inputs()
    low, high = (0, 255) if unsigned else (-128, 127)
    x = np.random.default_rng(1).uniform(low, high, value.shape).astype(np.float32)
    with load_engine(artifact.path) as engine:
        (answer,) = engine.infer({"x": x}).values()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    exact = onnxruntime.InferenceSession(path, options).run(None, {"x": x})[0]
    found.append([float(abs(answer - exact).max() / exact.std()), list(artifact.warnings)])
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int, bool, bool], Any]:
    """Difference from exact arithmetic and warnings of engines on a CPU without VNNI.

    By form, largest weight, sign, and whether the graph is built as it is.
    """
    pytest.importorskip("openvino")
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("sums of 16 bits are x86's")
    folder = tmp_path_factory.mktemp("forms")
    cases: dict[tuple[str, int, bool, bool], Path] = {}
    for form in FORMS:
        for most, as_it_is in ((64, True), (127, True), (127, False)):
            for unsigned in (False, True):
                path = folder / f"{len(cases)}.onnx"
                cases[form, most, unsigned, as_it_is] = write(path, form, most, unsigned=unsigned)
                if form in STORED_AS_FLOATS:
                    quantize_in_graph(path)
    given = [(str(path), key[2], key[3]) for key, path in cases.items()]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(given),
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(cases, json.loads(done.stdout), strict=True))


@pytest.mark.matrix
@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_engine_without_vnni_is_exact(form: str, unsigned: bool, answers: Any) -> None:
    small, _ = answers[form, 64, unsigned, True]
    assert small < 1e-5
    large, warnings = answers[form, 127, unsigned, False]
    assert large < 1e-5
    assert bool(warnings) == (form not in NEVER_OVERFLOWING)
    assert all("has neither VNNI nor AMX" in each for each in warnings)
    # What the float weights are for: without them the sums saturate.
    saturated, _ = answers[form, 127, unsigned, True]
    assert (saturated > 0.1) == (form not in NEVER_OVERFLOWING)
