"""The fusion analysis's score on a hand-made network and layer file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fusion_score.py"
INT8, FLOAT = "Row major Int8 format", "Row major linear FP32 format"


def write_model(path: Path) -> None:
    """Two convolutions, the first quantized on both sides, the second not."""
    constants = [
        numpy_helper.from_array(np.float32(0.1), "scale"),
        numpy_helper.from_array(np.int8(0), "zero"),
        numpy_helper.from_array(np.ones((16, 16, 1, 1), np.int8), "integers"),
        numpy_helper.from_array(np.ones((16, 16, 1, 1), np.float32), "floats"),
    ]
    pair = ["scale", "zero"]
    nodes = [
        helper.make_node("DequantizeLinear", ["integers", *pair], ["w"], name="w"),
        helper.make_node("QuantizeLinear", ["x", *pair], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", *pair], ["dq"], name="dq"),
        helper.make_node("Conv", ["dq", "w"], ["a"], name="first"),
        helper.make_node("Conv", ["a", "floats"], ["y"], name="second"),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16, 8, 8))
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 16, 8, 8))
    graph = helper.make_graph(nodes, "g", [image], [result], constants)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def layer(name: str, reads: str, writes: str) -> dict[str, Any]:
    return {
        "Name": name,
        "LayerType": "CaskConvolution",
        "Inputs": [{"Name": "in", "Format/Datatype": reads}],
        "Outputs": [{"Name": "out", "Format/Datatype": writes}],
    }


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_fusion_score_counts_right_predictions(tmp_path: Path) -> None:
    write_model(tmp_path / "net.onnx")
    layers = [layer("first", INT8, FLOAT), layer("second", INT8, FLOAT)]
    (tmp_path / "net.json").write_text(json.dumps({"Layers": layers}))
    done = run(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["name"] for row in rows] == ["net", "all"]
    assert rows[0]["precision"] == 0.5
    assert rows[0]["output"] == 1.0
    assert rows[0]["add"] is None
    assert rows[1]["scored"] == {"precision": 2, "output": 2, "add": 0}


def test_fusion_score_needs_a_pair(tmp_path: Path) -> None:
    write_model(tmp_path / "net.onnx")
    done = run(tmp_path)
    assert done.returncode == 2
    assert "Expected pairs" in done.stderr
