"""State that a Loop passes on unchanged."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper

from qat_lib.export.passes import hoist_loop_invariants


def loop(*outputs):
    """Return a model that adds ``w`` to ``x`` three times; ``w`` is state of its Loop."""

    def value(name, shape=(2,), kind=TensorProto.FLOAT):
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["sum", "inner"], ["next"]),
        ],
        "body",
        [
            value("i", (), TensorProto.INT64),
            value("go", (), TensorProto.BOOL),
            value("inner"),
            value("sum"),
        ],
        [value("on", (), TensorProto.BOOL), value("inner"), value("next"), value("next")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "w", "x"], ["kept", "last", "all"], "loop", body=body)],
        "graph",
        [value("x")],
        [value(name, shape) for name, shape in outputs],
        [
            onnx.numpy_helper.from_array(np.asarray(3, np.int64), "n"),
            onnx.numpy_helper.from_array(np.float32([1, 2]), "w"),
        ],
    )
    opset = helper.make_opsetid("", 17)
    return ir.serde.deserialize_model(helper.make_model(graph, opset_imports=[opset], ir_version=8))


def run(model):
    proto = ir.serde.serialize_model(model)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(None, {"x": np.float32([5, 7])})


def test_body_reads_unchanged_state_from_outside():
    model = loop(("last", (2,)), ("all", (3, 2)))
    lowered = hoist_loop_invariants(model)
    (node,) = lowered.graph
    body = node.attributes["body"].value
    assert [x and x.name for x in node.inputs] == ["n", None, "x"]
    assert [x.name for x in node.outputs] == ["last", "all"]
    assert [x.name for x in body.inputs] == ["i", "go", "sum"]
    for before, after in zip(run(model), run(lowered), strict=True):
        np.testing.assert_array_equal(before, after)


def test_state_that_is_an_output_stays():
    lowered = hoist_loop_invariants(loop(("kept", (2,)), ("last", (2,))))
    (node,) = lowered.graph
    assert len(node.inputs) == 4
    np.testing.assert_array_equal(run(lowered)[0], [1, 2])
