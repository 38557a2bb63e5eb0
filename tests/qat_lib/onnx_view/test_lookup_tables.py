"""Lookup tables that move a little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qat_lib.engines.onnxruntime import Reference
from qat_lib.onnx_view.lookup_tables import with_moved_tables


def write(path: Path) -> Path:
    """Write a lookup of vectors, a sum with a bias, and a lookup of sizes in whole numbers."""
    random = np.random.default_rng(1)
    arrays = {
        "table": random.standard_normal((7, 4)).astype(np.float32),
        "bias": np.ones(4, np.float32),
        "sizes": np.array([3, 5], np.int64),
        "first": np.array(0, np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["vectors"]),
        helper.make_node("Add", ["vectors", "bias"], ["y"]),
        helper.make_node("Gather", ["sizes", "first"], ["size"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["b", 3])
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 3, 4]),
        helper.make_tensor_value_info("size", TensorProto.INT64, []),
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in arrays.items()]
    graph = helper.make_graph(nodes, "g", [x], outputs, constants)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def test_tables_alone_move(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx")
    moved = onnx.load_model_from_string(with_moved_tables(path, 2.0**-7))
    for one, other in zip(onnx.load(path).graph.initializer, moved.graph.initializer, strict=True):
        before, after = numpy_helper.to_array(one), numpy_helper.to_array(other)
        assert after.dtype == before.dtype
        if one.name == "table":
            change = np.abs(after / before - 1)
            assert 2.0**-9 < change.max() <= 2.0**-7 * 1.001
        else:
            np.testing.assert_array_equal(after, before)


def test_reference_answers_with_moved_tables(tmp_path: Path) -> None:
    reference = Reference(write(tmp_path / "m.onnx"))
    request = {"x": np.array([[0, 3, 6]])}
    plain, moved = reference.run(request), reference.moved(request)
    assert 0 < np.abs(moved["y"] - plain["y"]).max() < 0.05
    assert moved["size"] == plain["size"] == 3
