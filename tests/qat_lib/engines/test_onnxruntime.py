"""ONNX files that ONNX Runtime computes exactly on every CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from served_classifier import write_graph

from qat_lib.engines.onnxruntime import reference_session, write_exact


def test_write_exact_keeps_the_values(tmp_path: Path) -> None:
    """A weight that several nodes read is shifted for all of them."""
    import onnx

    path = write_graph(tmp_path / "m.onnx")
    model = onnx.load(str(path))
    node = next(each for each in model.graph.node if "kernel" in each.input)
    again = onnx.NodeProto.FromString(node.SerializeToString())
    again.output[0] = "again"
    model.graph.node.insert(0, again)
    model.graph.output.append(onnx.helper.make_tensor_value_info("again", 1, [10, 1, 8, 8]))
    onnx.save(model, str(path))
    write_exact(path, tmp_path / "exact.onnx")
    exact = onnx.load(str(tmp_path / "exact.onnx"))
    (kernel,) = (each for each in exact.graph.initializer if each.name == "kernel")
    assert kernel.data_type == onnx.TensorProto.UINT8
    x = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype(np.float32)
    before, after = (
        reference_session(each).run(None, {"input": x}) for each in (path, tmp_path / "exact.onnx")
    )
    for expected, found in zip(before, after, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_write_exact_copies_files_without_overflow(tmp_path: Path) -> None:
    import onnx

    path = write_graph(tmp_path / "m.onnx")
    model = onnx.load(str(path))
    for tensor in model.graph.initializer:
        if tensor.name == "kernel":
            halved = onnx.numpy_helper.to_array(tensor) // 2
            tensor.CopyFrom(onnx.numpy_helper.from_array(halved, "kernel"))
    onnx.save(model, str(path))
    write_exact(path, tmp_path / "exact.onnx")
    assert (tmp_path / "exact.onnx").read_bytes() == path.read_bytes()
