"""Recurrent networks as ONNX graphs, as the exporter writes Keras's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STEPS, FEATURES, UNITS = 8, 6, 16
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def write_stacked(path: Path, op: str, *, layers: int = 2) -> Path:
    """Write stacked recurrent layers of one operator and a dense layer.

    All recurrent layers but the last return their sequences.
    """
    gates = GATES[op]
    generator = np.random.default_rng(0)
    nodes, constants = [], []

    def constant(name: str, shape: tuple[int, ...]) -> str:
        values = (0.4 * generator.standard_normal(shape)).astype(np.float32)
        constants.append(numpy_helper.from_array(values, name))
        return name

    for name, axis in (("one", 1), ("zero", 0)):
        constants.append(numpy_helper.from_array(np.array([axis], np.int64), name))
    nodes.append(helper.make_node("Transpose", ["x"], ["sequence0"], "in", perm=[1, 0, 2]))
    for index in range(layers):
        width = UNITS if index else FEATURES
        inputs = [
            f"sequence{index}",
            constant(f"w{index}", (1, gates * UNITS, width)),
            constant(f"r{index}", (1, gates * UNITS, UNITS)),
            constant(f"b{index}", (1, 2 * gates * UNITS)),
        ]
        outputs = [f"all{index}", f"last{index}"]
        nodes.append(helper.make_node(op, inputs, outputs, f"layer{index}", hidden_size=UNITS))
        nodes.append(
            helper.make_node(
                "Squeeze", [f"all{index}", "one"], [f"sequence{index + 1}"], f"squeeze{index}"
            )
        )
    nodes.append(helper.make_node("Squeeze", [f"last{layers - 1}", "zero"], ["state"], "state"))
    inputs = ["state", constant("kernel", (UNITS, 4)), constant("bias", (4,))]
    nodes.append(helper.make_node("Gemm", inputs, ["logits"], "logits"))
    return _save(path, nodes, constants)


def write_loop(path: Path) -> Path:
    """Write a simple recurrent layer as a Loop over time steps.

    The exporter does so without ``unroll``.
    """
    generator = np.random.default_rng(0)
    weights = {
        "w": (0.4 * generator.standard_normal((FEATURES, 4))).astype(np.float32),
        "r": (0.4 * generator.standard_normal((4, 4))).astype(np.float32),
        "start": np.zeros((1, 4), np.float32),
        "count": np.array(STEPS, np.int64),
        "go_on": np.array(True),
    }
    constants = [numpy_helper.from_array(values, name) for name, values in weights.items()]
    step = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    before, after = (
        helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("before", "after")
    )
    h, new = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("h", "new"))
    body = [
        helper.make_node("Identity", ["before"], ["after"]),
        helper.make_node("Gather", ["sequence", "i"], ["xt"], axis=0),
        helper.make_node("MatMul", ["xt", "w"], ["a"]),
        helper.make_node("MatMul", ["h", "r"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Tanh", ["c"], ["new"]),
    ]
    graph = helper.make_graph(body, "body", [step, before, h], [after, new])
    nodes = [
        helper.make_node("Transpose", ["x"], ["sequence"], "in", perm=[1, 0, 2]),
        helper.make_node("Loop", ["count", "go_on", "start"], ["logits"], "steps", body=graph),
    ]
    return _save(path, nodes, constants)


def _save(path: Path, nodes: list[Any], constants: list[Any]) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", STEPS, FEATURES])
    y = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph(nodes, "recurrent", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path
