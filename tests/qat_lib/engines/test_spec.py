"""A build spec's text forms, refusals, and match with a graph."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from qat_lib.engines import (
    BuildSpec,
    ShapeProfile,
    build_engine,
    choose_backend,
    parse_shapes,
    parse_size,
)
from qat_lib.engines.onnx_graph import read_summary, resolve
from qat_lib.errors import BackendUnavailableError, ConfigError


def test_shapes_repeat_the_rest_of_the_first() -> None:
    shapes = parse_shapes("image:1x3x224x224,8x...,32x...; mask:1x224")
    assert shapes["image"] == ShapeProfile(
        minimum=(1, 3, 224, 224), optimum=(8, 3, 224, 224), maximum=(32, 3, 224, 224)
    )
    assert shapes["mask"] == ShapeProfile.fixed((1, 224))
    assert shapes["mask"].is_fixed


def test_input_names_may_hold_colons() -> None:
    assert list(parse_shapes("model/input:0:1x3")) == ["model/input:0"]


@pytest.mark.parametrize(
    "text",
    [
        "1x3x8x8",
        "input:",
        "input:1x3,2x3",
        "input:axb",
        "input:...",
        "input:1x...",
        "input:2x3,1x3,4x3",
        "i:0x3",
    ],
)
def test_wrong_shapes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_shapes(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 2**32), ("512 MiB", 2**29), ("1.5KB", 1500), ("100", 100), ("7b", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "4XB", "-1MiB", "1e9"])
def test_wrong_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="A size is a number"):
        parse_size(text)


@pytest.mark.parametrize(
    "values",
    [
        {"backend": "tpu"},
        {"optimization_level": 6},
        {"threads": -1},
        {"max_batch_size": 0},
        {"workspace_mib": 0},
        {"float_precision": "fp8"},
        {"hint": "fast"},
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Received"):
        BuildSpec(**values)


def test_round_trip_through_json() -> None:
    spec = BuildSpec(
        backend="tensorrt",
        shapes=parse_shapes("input:1x3x8x8,4x...,8x..."),
        timing_cache=Path("cache.bin"),
        preprocessing={"scale": 0.5},
        classes=("a", "b"),
    )
    assert BuildSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_dynamic_batch_gets_a_default_profile(int8_onnx: Path) -> None:
    spec = resolve(BuildSpec(max_batch_size=16), read_summary(int8_onnx))
    assert str(spec.shapes["input"]) == "1x1x8x8,16x1x8x8,16x1x8x8"


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ("image:1x1x8x8", r"names \['image'\], which are no inputs.*\['input'\]"),
        ("input:1x3x8x8", "does not fit the model's input"),
        ("input:1x8x8", "does not fit the model's input"),
    ],
)
def test_profiles_must_fit_the_graph(int8_onnx: Path, shapes: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(BuildSpec(shapes=parse_shapes(shapes)), read_summary(int8_onnx))


def test_dynamic_pixels_need_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.onnx"
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, "h", "w"])
        for name in ("x", "y")
    ]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], name="relu")], "g", tensors[:1], tensors[1:]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        str(path),
    )
    with pytest.raises(ConfigError, match="dynamic dimensions besides the batch"):
        resolve(BuildSpec(), read_summary(path))
    shapes = parse_shapes("x:1x3x4x4,1x3x8x8,2x3x8x8")
    artifact = build_engine(path, BuildSpec(backend="onnxruntime", shapes=shapes))
    assert artifact.manifest.inputs[0].shape == (None, 3, None, None)


def test_graph_summary_tells_how_weights_are_stored(int8_onnx: Path, fp32_onnx: Path) -> None:
    assert read_summary(int8_onnx).weights == "int8"
    assert read_summary(fp32_onnx).weights is None
    assert len(read_summary(int8_onnx).weighted) == len(read_summary(fp32_onnx).weighted) == 7


def test_missing_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(BackendUnavailableError, match="tensorrt"):
        choose_backend("tensorrt")
    assert choose_backend("auto") in ("openvino", "onnxruntime")
