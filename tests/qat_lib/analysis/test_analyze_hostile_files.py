"""Invalid, broken or hostile files give one message in bounded resources.

The resources are time and memory.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_graphs import GraphBuilder
from resnet50_graph import resnet50

from qat_lib.analysis import analyze_onnx
from qat_lib.errors import ExportError, QatlineError


def small() -> GraphBuilder:
    g = GraphBuilder()
    g.output(g.conv(g.qdq(g.input()), 16, 16))
    return g


def message(path: Path) -> str:
    with pytest.raises(ExportError) as caught:
        analyze_onnx(path)
    text = str(caught.value)
    assert text.startswith("Expected")
    assert len(text) < 1000
    return text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"PK\x03\x04" + b"x" * 200,
        b"not an onnx file\n",
        bytes(range(256)),
        b"\x08\x08",
    ],
)
def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert "model.onnx" in message(path)


def test_no_file_and_a_directory(tmp_path: Path) -> None:
    assert "No such file" in message(tmp_path / "none.onnx")
    assert "it is a folder" in message(tmp_path)


def test_a_pipe_and_a_device_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "zero.onnx").symlink_to("/dev/zero")
    assert "it is a pipe" in message(tmp_path / "pipe.onnx")
    assert "it is a device" in message(tmp_path / "zero.onnx")


def test_every_truncation_is_refused_or_still_a_graph(tmp_path: Path) -> None:
    data = small().model().SerializeToString()
    path = tmp_path / "model.onnx"
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        message(path)


def test_damaged_files_raise_nothing_else(tmp_path: Path) -> None:
    data = small().model().SerializeToString()
    path, chance = tmp_path / "model.onnx", random.Random(7)
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(bytes(damaged))
        with contextlib.suppress(QatlineError):
            analyze_onnx(path)


@pytest.mark.parametrize("opset", [0, 6, 99, 2**40])
def test_other_opsets(tmp_path: Path, opset: int) -> None:
    model = small().model()
    model.opset_import[0].version = opset
    onnx.save(model, tmp_path / "model.onnx")
    assert f"opset {opset}" in message(tmp_path / "model.onnx")


@pytest.mark.parametrize("opset", [7, 11, 13, onnx.defs.onnx_opset_version()])
def test_opsets_that_are_read(tmp_path: Path, opset: int) -> None:
    g = GraphBuilder(opset=opset)
    g.output(g.conv(g.input(), 16, 16, quantized=False))
    assert len(analyze_onnx(g.save(tmp_path / "model.onnx")).layers) == 1


def test_missing_external_data(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        small().model(), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    assert analyze_onnx(path).int8_layers == 1
    (tmp_path / "weights.bin").unlink()
    assert "'weights.bin', which does not exist" in message(path)


def test_external_data_that_is_too_short(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        small().model(), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    (tmp_path / "weights.bin").write_bytes(b"x")
    assert "can't be read" in message(path)


@pytest.mark.parametrize("location", ["/etc/passwd", "../secret", "", "a/../../secret"])
def test_external_data_stays_beside_the_model(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 64)
    folder = tmp_path / "models"
    folder.mkdir()
    model = small().model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    assert "which is not a file inside" in message(folder / "model.onnx")


def with_nodes(tmp_path: Path, *nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> Path:
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])]
    graph = helper.make_graph(
        nodes, "g", values, [helper.make_empty_tensor_value_info(name) for name in outputs]
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    )
    return path


def test_a_cycle(tmp_path: Path) -> None:
    nodes = (
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
    )
    assert "'first' waits for its own output" in message(
        with_nodes(tmp_path, *nodes, outputs=("b",))
    )


def test_a_node_that_reads_itself(tmp_path: Path) -> None:
    assert "cycles" in message(with_nodes(tmp_path, helper.make_node("Relu", ["y"], ["y"])))


def test_a_cycle_of_quantizers(tmp_path: Path) -> None:
    nodes = (
        helper.make_node("QuantizeLinear", ["b", "x"], ["a"]),
        helper.make_node("DequantizeLinear", ["a", "x"], ["b"]),
    )
    assert "cycles" in message(with_nodes(tmp_path, *nodes, outputs=("b",)))


def test_two_producers_and_none(tmp_path: Path) -> None:
    twice = [helper.make_node("Relu", ["x"], ["y"], name=name) for name in "ab"]
    assert "one producer" in message(with_nodes(tmp_path, *twice))
    assert "'nothing'" in message(
        with_nodes(tmp_path, helper.make_node("Relu", ["nothing"], ["y"]))
    )


def test_nodes_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    nodes = (helper.make_node("Tanh", ["a"], ["y"]), helper.make_node("Relu", ["x"], ["a"]))
    assert [kernel.name for kernel in analyze_onnx(with_nodes(tmp_path, *nodes)).engine] == [
        "Relu_1 + Tanh_0"
    ]


def test_a_loop_is_not_analyzed_inside(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_out"]),
            helper.make_node("Add", ["state", "x"], ["state_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [1, 4]),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_out", TensorProto.FLOAT, [1, 4]),
        ],
    )
    report = analyze_onnx(
        with_nodes(tmp_path, helper.make_node("Loop", ["", "", "x"], ["y"], name="loop", body=body))
    )
    assert [(finding.code, finding.node) for finding in report.findings] == [("V27", "loop")]


def test_functions_that_call_themselves_and_functions_that_explode(tmp_path: Path) -> None:
    def model(*bodies: list[str]) -> Path:
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
        functions = []
        for index, calls in enumerate(bodies):
            nodes, value = [], "x"
            for step, op in enumerate(calls):
                following = "y" if step == len(calls) - 1 else f"v{step}"
                nodes.append(
                    helper.make_node(op, [value], [following], domain="" if op == "Relu" else "f")
                )
                value = following
            functions.append(helper.make_function("f", f"f{index}", ["x"], ["y"], nodes, opsets))
        graph = helper.make_graph(
            [helper.make_node("f0", ["x"], ["y"], domain="f")],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        )
        made = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)
        path = tmp_path / "model.onnx"
        path.write_bytes(made.SerializeToString())
        return path

    assert "calls itself" in message(model(["f1"], ["f0"]))
    assert "nodes" in message(model(*([f"f{i + 1}"] * 10 for i in range(12)), ["Relu"]))
    assert len(analyze_onnx(model(["f1", "f1"], ["Relu"])).engine) == 1


def test_a_tensor_that_lies_about_its_size(tmp_path: Path) -> None:
    model = small().model()
    for dims in ([2**62, 4], [-5], [1000]):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        scale = next(t for t in changed.graph.initializer if t.name.startswith("scale"))
        scale.ClearField("dims")
        scale.dims.extend(dims)
        path = tmp_path / "model.onnx"
        path.write_bytes(changed.SerializeToString())
        assert "it is damaged" in message(path)


def chain(count: int, build: Callable[[GraphBuilder, str, int], str]) -> GraphBuilder:
    g = GraphBuilder()
    x = g.input()
    for index in range(count):
        x = build(g, x, index)
    g.output(x)
    return g


@pytest.mark.matrix_except("gates")
@pytest.mark.parametrize(
    "build",
    [
        lambda g, x, i: g.op(
            "MaxPool" if i % 2 else "Transpose", [x], **({"kernel_shape": [1, 1]} if i % 2 else {})
        ),
        lambda g, x, i: g.op("Identity", [x]),
        lambda g, x, i: g.qdq(x, 0.1 if i % 2 else 0.2, f"q{i}"),
        lambda g, x, i: g.op("Add", [x, x]),
        lambda g, x, i: g.op("Mul", [x, g.op("Sigmoid", [x])]),
    ],
    ids=["movers", "identities", "quantizers", "adds", "gates"],
)
def test_ten_thousand_nodes(tmp_path: Path, build: Callable[[GraphBuilder, str, int], str]) -> None:
    report = analyze_onnx(chain(10_000, build).save(tmp_path / "model.onnx"))
    assert report.to_json()


@pytest.mark.matrix
def test_memory_stays_near_the_files_size(tmp_path: Path) -> None:
    """A process limited to 1.5 GiB reads 160 MB of weights."""
    g = GraphBuilder()
    x = g.qdq(g.input(shape=(1, 4096)))
    weight = g.const(np.zeros((4096, 10000)), np.float32)
    g.output(g.op("MatMul", [x, weight], "dense/MatMul"))
    path = g.save(tmp_path / "model.onnx")
    code = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (1536 * 2**20, resource.RLIM_INFINITY))
        from qat_lib.analysis import analyze_onnx
        assert analyze_onnx({str(path)!r}).layers[0].macs == 40960000
    """
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr


def test_importing_the_analysis_imports_no_framework() -> None:
    code = "import sys, qat_lib.analysis; print(sorted({'tensorflow', 'keras', 'onnxruntime'} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout.strip() == "[]"


def test_resnet_file_round_trip(tmp_path: Path) -> None:
    assert analyze_onnx(resnet50().save(tmp_path / "model.onnx")).int8_layers == 54
