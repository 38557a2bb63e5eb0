"""Reading an ONNX file: refusals with reasons, and inlined functions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_lib.errors import ExportError
from qat_lib.onnx_view import loading
from qat_lib.onnx_view.loading import load_onnx

NEWEST = onnx.defs.onnx_opset_version()
Change = Callable[[onnx.ModelProto], object]


def value(name: str, shape: Any = (2,)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model_of(*nodes: onnx.NodeProto, opset: int = 17, **options: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes or [helper.make_node("Relu", ["x"], ["y"], "relu")], "net", [value("x")], [value("y")]
    )
    opsets = [helper.make_opsetid("", opset), *options.pop("opsets", [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **options)


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def message(path: Path) -> str:
    with pytest.raises(ExportError) as caught:
        load_onnx(path)
    text = str(caught.value)
    assert text.startswith("Expected")
    assert str(path) in text
    return text


def test_load_onnx_reads_what_was_saved(tmp_path: Path) -> None:
    model = model_of()
    path = saved(tmp_path, model)
    assert load_onnx(path) == model
    assert load_onnx(str(path)) == model


def test_load_onnx_refuses_what_is_no_file(tmp_path: Path) -> None:
    assert message(tmp_path / "none.onnx").endswith("none.onnx: No such file or directory.")
    assert "it is a folder" in message(tmp_path)
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "it is a pipe" in message(tmp_path / "pipe.onnx")


def test_load_onnx_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, model_of())
    size = path.stat().st_size
    monkeypatch.setattr(loading, "MAX_FILE_BYTES", size)
    assert load_onnx(path).graph.name == "net"
    monkeypatch.setattr(loading, "MAX_FILE_BYTES", size - 1)
    assert f"it has {size:,} bytes" in message(path)


def test_limits_of_protobuf_and_old_operators() -> None:
    assert (loading.MAX_FILE_BYTES, loading.OLDEST_OPSET) == (2_147_483_647, 7)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "(0 bytes), which holds none"),
        (b"\x08\x08", "(2 bytes), which holds none"),
        (b"\x3a\x00", "(2 bytes), which holds none"),
        (b"\x3a\x05", "which can't be read: "),
        (b"\x3a\x02\x0a\x05", "which can't be read: "),
        (b"\x39" + bytes(8), "holds none"),
        (b"\x3a\x02\x12\x01", "which can't be read: "),
    ],
)
def test_load_onnx_refuses_bytes_that_are_no_model(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert reason in message(path)


def test_load_onnx_accepts_outputs_or_nodes_alone(tmp_path: Path) -> None:
    model = model_of()
    del model.graph.output[:]
    assert len(load_onnx(saved(tmp_path, model)).graph.node) == 1
    model = model_of()
    del model.graph.node[:]
    assert len(load_onnx(saved(tmp_path, model)).graph.output) == 1
    del model.graph.output[:]
    assert "with a graph" in message(saved(tmp_path, model))


def add_value_info(model: onnx.ModelProto) -> None:
    model.graph.value_info.append(value("BROKEN"))


def add_external(model: onnx.ModelProto, **entry: str) -> None:
    tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[2])
    tensor.external_data.add(**entry)


def add_function(model: onnx.ModelProto) -> None:
    opsets = [helper.make_opsetid("", 17)]
    nodes = [helper.make_node("Relu", ["a"], ["b"], "BROKEN")]
    model.functions.append(helper.make_function("f", "half", ["a"], ["b"], nodes, opsets))


def add_branch(model: onnx.ModelProto) -> None:
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["BROKEN"])], "branch", [], [value("z")]
    )
    model.graph.node.append(
        helper.make_node("If", ["x"], ["z"], then_branch=branch, else_branch=branch)
    )


TEXTS: dict[str, Change] = {
    "graph": lambda m: setattr(m.graph, "name", "BROKEN"),
    "domain of an operator set": lambda m: m.opset_import.add(domain="BROKEN", version=1),
    "input": lambda m: setattr(m.graph.input[0], "name", "BROKEN"),
    "output": lambda m: setattr(m.graph.output[0], "name", "BROKEN"),
    "inner tensor": add_value_info,
    "dimension": lambda m: m.graph.input[0].CopyFrom(value("x", (1, "BROKEN", 3))),
    "initializer": lambda m: m.graph.initializer.append(
        numpy_helper.from_array(np.zeros(1), "BROKEN")
    ),
    "external key": lambda m: add_external(m, key="BROKEN", value="file"),
    "external value": lambda m: add_external(m, key="location", value="BROKEN"),
    "node": lambda m: setattr(m.graph.node[0], "name", "BROKEN"),
    "operator": lambda m: setattr(m.graph.node[0], "op_type", "BROKEN"),
    "domain": lambda m: setattr(m.graph.node[0], "domain", "BROKEN"),
    "what a node reads": lambda m: m.graph.node[0].input.append("BROKEN"),
    "what a node writes": lambda m: m.graph.node[0].output.append("BROKEN"),
    "attribute": lambda m: m.graph.node[0].attribute.append(helper.make_attribute("BROKEN", 1)),
    "node of a function": add_function,
    "node of a branch": add_branch,
}


@pytest.mark.parametrize("place", TEXTS)
def test_load_onnx_refuses_a_name_that_is_no_text(tmp_path: Path, place: str) -> None:
    model = model_of()
    TEXTS[place](model)
    path = saved(tmp_path, model)
    path.write_bytes(path.read_bytes().replace(b"BROKEN", b"BRO\xff\xfeN"))
    assert "in which a name is no text" in message(path)


@pytest.mark.parametrize("opset", [7, 8, 17, NEWEST])
def test_load_onnx_takes_these_operator_sets(tmp_path: Path, opset: int) -> None:
    assert load_onnx(saved(tmp_path, model_of(opset=opset))).opset_import[0].version == opset


@pytest.mark.parametrize("opset", [0, 6, NEWEST + 1])
def test_load_onnx_refuses_other_operator_sets(tmp_path: Path, opset: int) -> None:
    text = message(saved(tmp_path, model_of(opset=opset)))
    assert f"of opset 7 to {NEWEST}." in text
    assert f"with opset {opset}." in text


def test_load_onnx_counts_standard_domain_opsets(tmp_path: Path) -> None:
    other = helper.make_opsetid("com.microsoft", 1)
    assert len(load_onnx(saved(tmp_path, model_of(opsets=[other]))).opset_import) == 2
    twice = model_of(opsets=[helper.make_opsetid("ai.onnx", 17)])
    assert "with 2 entries for the ONNX operator set" in message(saved(tmp_path, twice))
    named = model_of()
    named.opset_import[0].domain = "ai.onnx"
    assert load_onnx(saved(tmp_path, named)).opset_import[0].version == 17
    foreign = model_of()
    foreign.opset_import[0].domain = "com.microsoft"
    assert "with 0 entries for the ONNX operator set" in message(saved(tmp_path, foreign))


def test_load_onnx_inlines_functions(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    body = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("f", "f0", ["a"], ["b"], body, opsets)
    call = helper.make_node("f0", ["x"], ["y"], domain="f")
    found = load_onnx(saved(tmp_path, model_of(call, opsets=opsets[1:], functions=[function])))
    assert [node.op_type for node in found.graph.node] == ["Relu"]


def test_load_onnx_checks_tensors_inside_and_outside(tmp_path: Path) -> None:
    short = model_of()
    short.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[3], raw_data=bytes(8))
    assert "needs 12 bytes" in message(saved(tmp_path, short))
    absent = model_of()
    add_external(absent, key="location", value="weights.bin")
    absent.graph.initializer[0].data_location = TensorProto.EXTERNAL
    assert "'weights.bin', which does not exist" in message(saved(tmp_path, absent))
