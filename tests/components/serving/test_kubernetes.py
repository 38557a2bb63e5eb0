"""KServe's resources, against the schema of its own classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import kserve
import pytest
import yaml
from kubernetes import client
from served_classifier import write_graph

from qatline.components.serving.assemble import PackageOptions, assemble_package
from qatline.components.serving.sources import ModelSource, file_source


def check(value: Any, kind: str) -> None:
    """Check that a value has the fields and types of a class of the API, at every depth."""
    if kind.startswith("list["):
        assert isinstance(value, list)
        for each in value:
            check(each, kind[5:-1])
    elif kind.startswith(("dict(", "dict[")):
        assert isinstance(value, dict)
    elif kind in ("str", "int", "bool", "float", "object"):
        assert kind == "object" or type(value).__name__ in (kind, "int"), (value, kind)
    else:
        known = getattr(kserve, kind, None) or getattr(client, kind)
        names = {json_name: name for name, json_name in known.attribute_map.items()}
        assert set(value) <= set(names), (kind, set(value) - set(names))
        for name, each in value.items():
            check(each, known.openapi_types[names[name]])


def resources(source: ModelSource, folder: Path, **options: Any) -> tuple[Any, Any]:
    uri = {"storage_uri": "s3://models/digits/"}
    assemble_package(
        source, folder, PackageOptions(target="kserve", name="My_digits", **{**uri, **options})
    )
    runtime, service = yaml.safe_load_all((folder / "kserve.yaml").read_text())
    return runtime, service


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_resources_follow_the_schema(backend: Any, tmp_path: Path) -> None:
    graph = file_source(write_graph(tmp_path / "m.onnx"))
    runtime, service = resources(graph, tmp_path / "a", backend=backend)
    check(runtime, "V1alpha1ServingRuntime")
    check(service, "V1beta1InferenceService")
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"] == "my-digits-runtime"
    (form,) = runtime["spec"]["supportedModelFormats"]
    assert form["name"] == model["modelFormat"]["name"]
    # The repository of the models itself, not a folder around it.
    assert model["storageUri"] == "s3://models/digits/models"
    (container,) = runtime["spec"]["containers"]
    assert ("tritonserver" in container["args"]) == (backend == "onnxruntime")
    assert "nvidia.com/gpu" not in container["resources"]["limits"]


def test_plan_gets_a_gpu(source: ModelSource, tmp_path: Path) -> None:
    assert source.manifest is not None
    (tmp_path / "m.engine").write_bytes(b"a plan")
    manifest = replace(source.manifest, backend="tensorrt", backend_version="10.3.0.26")
    made = replace(source, engine=tmp_path / "m.engine", manifest=manifest)
    runtime, _ = resources(made, tmp_path / "a")
    (container,) = runtime["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["image"].endswith("24.08-py3")
