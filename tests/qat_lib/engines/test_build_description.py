"""A build adopts an ONNX file's own description, not other tools'."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from qat_lib.engines import BuildSpec, EngineManifest, build_engine


def built_with(folder: Path, **metadata: str) -> EngineManifest:
    """Return the manifest of an engine whose ONNX file has this metadata."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "relu")], "net", values[:1], values[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for key, value in metadata.items():
        model.metadata_props.append(onnx.StringStringEntryProto(key=f"qatline.{key}", value=value))
    onnx.save(model, folder / "net.onnx")
    spec = BuildSpec(backend="onnxruntime")
    return build_engine(folder / "net.onnx", spec, output=folder / "net.engine").manifest


def test_described_takes_the_classes_of_the_file(tmp_path: Path) -> None:
    manifest = built_with(tmp_path, classes='["a", 2]', preprocessing='{"scale": 1}')
    assert (manifest.classes, manifest.preprocessing) == (("a", "2"), {"scale": 1})


@pytest.mark.parametrize("text", ["", "cat,dog", "3", "true", '"ab"', "[" * 50_000])
def test_described_ignores_what_another_tool_wrote(tmp_path: Path, text: str) -> None:
    manifest = built_with(tmp_path, classes=text, preprocessing=text)
    assert (manifest.classes, manifest.preprocessing) == ((), None)
