"""A build adopts an ONNX file's own description, not other tools'."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from qat_lib.engines.build import _described
from qat_lib.engines.onnx_graph import GraphSummary, read_summary
from qat_lib.engines.spec import BuildSpec


def graph_with(path: Path, **metadata: str) -> GraphSummary:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "relu")], "net", values[:1], values[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for key, value in metadata.items():
        model.metadata_props.append(onnx.StringStringEntryProto(key=f"qatline.{key}", value=value))
    onnx.save(model, path)
    return read_summary(path)


def test_described_takes_the_classes_of_the_file(tmp_path: Path) -> None:
    graph = graph_with(tmp_path / "net.onnx", classes='["a", 2]', preprocessing='{"scale": 1}')
    found = _described(BuildSpec(backend="onnxruntime"), graph)
    assert (found.classes, found.preprocessing) == (("a", "2"), {"scale": 1})


@pytest.mark.parametrize("text", ["", "cat,dog", "3", "true", '"ab"', "[" * 50_000])
def test_described_ignores_what_another_tool_wrote(tmp_path: Path, text: str) -> None:
    graph = graph_with(tmp_path / "net.onnx", classes=text, preprocessing=text)
    found = _described(BuildSpec(backend="onnxruntime"), graph)
    assert (found.classes, found.preprocessing) == ((), None)
