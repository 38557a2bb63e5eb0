"""The built engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qat_lib.errors import StepError
from qatline.components.artifacts import Engines
from qatline.components.artifacts.engines import EngineInfo
from qatline.components.artifacts.variants import Variant

LAYER = {"name": "a", "kind": "Convolution", "nodes": ["n"], "precision": "int8", "weighted": True}


def test_built_are_the_variants_with_a_file(tmp_path: Path) -> None:
    for name in ("qat.engine", "fp32.engine", "other.engine"):
        (tmp_path / name).write_bytes(b"")
    assert Engines(tmp_path).built() == [Variant.FP32, Variant.QAT]


def test_infos_are_named_by_variant(tmp_path: Path) -> None:
    (tmp_path / "qat.engine.json").write_text('{"backend": "openvino", "inputs": []}')
    assert Engines(tmp_path).infos() == {"qat": EngineInfo(backend="openvino")}


def test_layers_are_those_of_the_backend(tmp_path: Path) -> None:
    engines = Engines(tmp_path)
    assert engines.layers(Variant.QAT) == []
    content = {"backend": "openvino", "layers": [LAYER], "inspector": None}
    (tmp_path / "qat.layers.json").write_text(json.dumps(content))
    (layer,) = engines.layers(Variant.QAT)
    assert (layer.nodes, layer.precision) == (("n",), "int8")


@pytest.mark.parametrize("layers", [3, [3], [{"name": "a"}], [{**LAYER, "colour": "red"}]])
def test_layers_of_another_shape_are_refused(tmp_path: Path, layers: object) -> None:
    (tmp_path / "qat.layers.json").write_text(json.dumps({"layers": layers}))
    with pytest.raises(StepError, match=r"qat\.layers\.json .*expected .* Run build_engine again"):
        Engines(tmp_path).layers(Variant.QAT)
