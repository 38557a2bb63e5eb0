"""Configurations for Triton, read back by its own classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from served_classifier import CLASSES, write_graph

from qat_lib.engines.manifest import EngineManifest
from qat_lib.errors import ConfigError
from qatline.components.serving.assemble import PackageOptions, assemble_package
from qatline.components.serving.sources import ModelSource, file_source
from qatline.components.serving.triton_repository import (
    TENSORRT_OF_IMAGE,
    choose_image,
    config_classes,
)

model_config_pb2 = config_classes()


def configs(source: ModelSource, folder: Path, **options: Any) -> dict[str, Any]:
    """Return the configuration of each model by its folder."""
    package = assemble_package(
        source, folder, PackageOptions(target="triton", name="digits", **options)
    )
    found = {}
    for file in sorted((package.path / "models").glob("*/config.pbtxt")):
        message = model_config_pb2.ModelConfig()
        found[file.parent.name] = text_format.Parse(file.read_text(), message)
        assert message.name == file.parent.name
        assert (file.parent / "1").is_dir()
    return found


def plan(source: ModelSource, version: str, *, compatible: bool = False) -> EngineManifest:
    """Return the manifest of an engine of TensorRT."""
    assert source.manifest is not None
    spec = {**source.manifest.spec, "version_compatible": compatible}
    return replace(source.manifest, backend="tensorrt", backend_version=version, spec=spec)


def test_config_has_names_shapes_and_types_of_the_model(
    source: ModelSource, tmp_path: Path
) -> None:
    (config,) = configs(source, tmp_path / "a", backend="onnxruntime").values()
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 32)
    (tensor,) = config.input
    assert (tensor.name, list(tensor.dims)) == ("input", [1, 8, 8])
    assert tensor.data_type == model_config_pb2.TYPE_FP32
    (output,) = config.output
    assert (output.name, list(output.dims)) == ("logits", [10])
    labels = tmp_path / "a" / "models" / "digits" / output.label_filename
    assert labels.read_text().splitlines() == CLASSES
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 256


def test_fixed_batch_is_a_dimension(tmp_path: Path) -> None:
    import onnx

    graph = write_graph(tmp_path / "m.onnx")
    model = onnx.load(str(graph))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(model, str(graph))
    (config,) = configs(file_source(graph), tmp_path / "a").values()
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [4, 1, 8, 8]
    assert not config.HasField("dynamic_batching")


def test_ensemble_of_a_fixed_batch_has_an_answer_for_each_sample(tmp_path: Path) -> None:
    import onnx

    graph = write_graph(tmp_path / "m.onnx")
    model = onnx.load(str(graph))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(model, str(graph))
    ensemble = configs(file_source(graph), tmp_path / "a", raw=True)["digits_raw"]
    assert list(ensemble.input[0].dims) == [4, 8, 8, 1]
    assert list(ensemble.output[0].dims) == [4, 1]


def test_ensemble_leads_from_raw_data_to_answers(source: ModelSource, tmp_path: Path) -> None:
    found = configs(source, tmp_path / "a", backend="openvino", raw=True)
    assert set(found) == {"digits", "digits_prepare", "digits_decode", "digits_raw"}
    ensemble = found["digits_raw"]
    assert ensemble.input[0].data_type == model_config_pb2.TYPE_UINT8
    assert list(ensemble.input[0].dims) == [8, 8, 1]
    assert [each.name for each in ensemble.output] == ["answer"]
    known = {each.name for each in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        part = found[step.model_name]
        assert set(step.input_map) == {each.name for each in part.input}
        assert set(step.output_map) == {each.name for each in part.output}
        assert set(step.input_map.values()) <= known
        known |= set(step.output_map.values())
    assert "answer" in known


def test_plan_runs_in_images_with_its_tensorrt(source: ModelSource, tmp_path: Path) -> None:
    engine = tmp_path / "model.engine"
    engine.write_bytes(b"a plan")
    made = replace(source, engine=engine, manifest=plan(source, "10.3.0.26"))
    (config,) = configs(made, tmp_path / "a").values()
    assert (config.platform, config.default_model_filename) == ("tensorrt_plan", "model.plan")
    assert config.max_batch_size == 16  # of the build, less than the default
    assert config.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
    assert (tmp_path / "a" / "models" / "digits" / "1" / "model.plan").read_bytes() == b"a plan"


@pytest.mark.parametrize(
    ("version", "compatible", "image", "expected"),
    [
        ("10.3.0.26", False, None, "24.08"),
        ("10.9.0.34", False, None, "25.04"),
        ("10.3.0.26", True, None, max(TENSORRT_OF_IMAGE)),
        ("10.3.0.26", False, "mine/triton:1", "mine/triton:1"),
        ("10.3.0.26", True, "nvcr.io/nvidia/tritonserver:25.01-py3", "25.01"),
    ],
)
def test_choose_image_takes_the_newest_that_fits(
    source: ModelSource, version: str, compatible: bool, image: str | None, expected: str
) -> None:
    assert expected in choose_image(image, plan(source, version, compatible=compatible))


@pytest.mark.parametrize(
    ("version", "compatible", "image", "message"),
    [
        ("10.3.0.26", False, "x/tritonserver:25.01-py3", "carries TensorRT 10.8.0.*24.08-py3"),
        ("10.9.0.34", True, "x/tritonserver:24.08-py3", "carries TensorRT 10.3.0"),
        ("11.4.0.1", False, None, "Expected an engine of a TensorRT that an image of Triton"),
        ("11.4.0.1", False, "x/tritonserver:25.01-py3", "after a new build"),
    ],
)
def test_choose_image_refuses_another_tensorrt(
    source: ModelSource, version: str, compatible: bool, image: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_image(image, plan(source, version, compatible=compatible))
