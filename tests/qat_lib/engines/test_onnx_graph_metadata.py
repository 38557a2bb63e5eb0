"""Metadata of an ONNX file: only qatline's own describe the engine."""

from pathlib import Path

import onnx
import pytest

from qat_lib.engines import BuildSpec, build_engine


@pytest.mark.parametrize(("prefix", "expected"), [("", ()), ("qatline.", ("cat", "dog"))])
def test_classes_of_another_producer_are_not_taken(
    prefix: str, expected: tuple[str, ...], fp32_onnx: Path, tmp_path: Path
) -> None:
    model = onnx.load(fp32_onnx)
    del model.metadata_props[:]
    onnx.helper.set_model_props(
        model, {f"{prefix}classes": '["cat", "dog"]', f"{prefix}preprocessing": "null"}
    )
    onnx.save(model, tmp_path / "model.onnx")
    spec = BuildSpec(backend="onnxruntime")
    built = build_engine(tmp_path / "model.onnx", spec, output=tmp_path / "model.engine")
    assert built.manifest.classes == expected
