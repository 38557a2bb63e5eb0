"""The families of keras.applications through the whole library, with TensorRTQDQCase.

The stages are those of ``benchmarks/applications.py``, which runs every builder on more and larger
images. Here each family is its smallest member, whole, on images as small as it takes.
"""

import gc
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
from keras import applications

from qat_lib import analyze_onnx

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        main = importlib.import_module("applications")
        parts = ("case", "table", "hub", "maps")
        found = {name: importlib.import_module(f"applications_{name}") for name in parts}
        yield SimpleNamespace(main=main, **found)
        for name in [name for name in sys.modules if name.split("_")[0] == "applications"]:
            del sys.modules[name]


Build = Callable[[tuple[int, int, int]], Any]


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network and what the analyzer must find in its ONNX file.

    Attributes:
        int8: weighted layers, which must all be INT8.
        fused: residual Adds inside of a convolution's kernel.
        adds: all Adds of two activations; None = the fused ones.
    """

    build: Build
    int8: int
    fused: int
    adds: int | None = None
    size: int = 32


def whole(builder: Callable[..., Any], **options: Any) -> Build:
    return lambda shape: builder(weights=None, input_shape=shape, classes=40, **options)


FAMILIES = {
    "ConvNeXt": Network(build=whole(applications.ConvNeXtTiny), int8=59, fused=18, adds=40),
    "DenseNet": Network(build=whole(applications.DenseNet121), int8=121, fused=0),
    "EfficientNet": Network(build=whole(applications.EfficientNetB0), int8=82, fused=9),
    "EfficientNetV2": Network(build=whole(applications.EfficientNetV2B0), int8=92, fused=15),
    "Inception": Network(build=whole(applications.InceptionV3), int8=95, fused=0, size=80),
    "InceptionResNet": Network(
        build=whole(applications.InceptionResNetV2), int8=245, fused=40, size=80
    ),
    "MobileNet": Network(build=whole(applications.MobileNet, alpha=0.25), int8=28, fused=0),
    "MobileNetV2": Network(build=whole(applications.MobileNetV2), int8=53, fused=10),
    "MobileNetV3": Network(build=whole(applications.MobileNetV3Small), int8=54, fused=6),
    "NASNet": Network(build=whole(applications.NASNetMobile), int8=357, fused=52, adds=80),
    "ResNet": Network(build=whole(applications.ResNet50), int8=54, fused=16),
    "ResNetV2": Network(build=whole(applications.ResNet50V2), int8=54, fused=16),
    "VGG": Network(build=whole(applications.VGG16), int8=16, fused=0),
    "Xception": Network(build=whole(applications.Xception), int8=75, fused=12, size=72),
}


# The costliest, and what other tests build as well: the other two have most patterns, too.
RARE = (
    *("ConvNeXt", "DenseNet", "EfficientNet", "EfficientNetV2", "Inception", "InceptionResNet"),
    *("MobileNetV3", "NASNet", "ResNet", "ResNetV2", "VGG", "Xception"),
)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=pytest.mark.slow) if name in RARE else name for name in FAMILIES],
)
def test_a_family(
    family: str, bench: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.case, "real_images", lambda *arguments: None)
    network = FAMILIES[family]
    keras.utils.clear_session()
    gc.collect()
    row = bench.case.run_stages(bench.case.Case(tmp_path, network.build, network.size, samples=4))
    assert bench.table.problems(row) == []
    assert row["float_parity"]["passed"]
    assert row["quantization_changes_output"]
    assert row["warnings"] == []
    assert row["float_layers"] == []
    found = row["analysis"]
    adds = network.fused if network.adds is None else network.adds
    assert (found["int8_layers"], found["fused_adds"], found["adds"]) == (
        network.int8,
        network.fused,
        adds,
    )
    planned = row["quantizers"]
    assert row["pairs"] == {
        "activations": planned["activation"] + planned.get("internal", 0),
        "weights": network.int8,
    }
    assert planned["weight"] == network.int8


# Weighted layers in INT8, and all: those of the attentions that multiply two activations stay in
# float.
HUB = {
    "ResNet18": (21, 21),
    "DenseNet": (63, 63),
    "MobileNet": (51, 51),
    "ViT": (26, 26),
    "Bert": (14, 18),
}


@pytest.mark.slow  # the import of keras_hub alone takes 15 seconds of a processor
@pytest.mark.parametrize("name", HUB)
def test_a_backbone_of_keras_hub(
    name: str, bench: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("keras_hub", reason="keras-hub is in the dependency group `test`")
    monkeypatch.setattr(bench.case, "real_images", lambda *arguments: None)
    keras.utils.clear_session()
    network = f"keras_hub {name}"
    row = bench.case.run_stages(
        bench.hub.case_of(network)(tmp_path, bench.hub.HUB[network], 32, samples=4)
    )
    assert bench.table.problems(row) == []
    assert row["quantization_changes_output"]
    found = row["analysis"]
    assert (found["int8_layers"], found["weighted_layers"]) == HUB[name]
    assert row["quantizers"]["weight"] == found["int8_layers"]


@pytest.mark.slow
def test_a_segmenter_of_keras_hub(bench: SimpleNamespace, tmp_path: Path) -> None:
    pytest.importorskip("keras_hub", reason="keras-hub is in the dependency group `test`")
    keras.utils.clear_session()
    network = "keras_hub SegFormer"
    case = bench.maps.map_case(network)(tmp_path, bench.maps.MAPS[network], 64, samples=2)
    row = bench.case.run_stages(case)
    assert bench.table.problems(row) == []
    assert row["quantization_changes_output"]
    assert (tmp_path / "model.engine").is_file()


@pytest.mark.matrix
def test_resnet50_gives_the_engine_that_was_published(
    bench: SimpleNamespace, tmp_path: Path
) -> None:
    """37 INT8 convolutions, 16 more fused, two pools, one Dense.

    The 16 have Add and ReLU in them; the pools are INT8, too; nothing is loose.
    """
    keras.utils.clear_session()
    case = bench.case.Case(tmp_path, whole(applications.ResNet50), 32, samples=4)
    row = bench.case.run_stages(case, ("build", "plan", "apply", "calibrate", "export"))
    assert "error" not in row
    report = analyze_onnx(tmp_path / "model.onnx")
    kernels = [kernel for kernel in report.engine if kernel.kind == "weighted"]
    with_add = [kernel for kernel in kernels if "/Add" in kernel.name]
    dense = [kernel for kernel in kernels if kernel.keras_layer == "predictions"]
    assert {kernel.reads for kernel in kernels} == {"int8"}
    assert {kernel.writes for kernel in kernels if kernel not in dense} == {"int8"}
    assert (len(kernels) - len(with_add) - len(dense), len(with_add), len(dense)) == (37, 16, 1)
    assert all(kernel.name.endswith("/Relu") for kernel in with_add)
    assert sorted((pool.op_type, pool.precision) for pool in report.pools) == [
        ("GlobalAveragePool", "int8"),
        ("MaxPool", "int8"),
    ]
    assert report.summary()["kernels"] == {"transpose": 1, "quantize": 1}  # both at the input


def test_the_table_says_what_failed(bench: SimpleNamespace, tmp_path: Path) -> None:
    def broken(shape: tuple[int, int, int]) -> Any:
        raise ValueError("no such network")

    row = {
        "name": "Broken",
        **bench.case.run_stages(bench.case.Case(tmp_path, broken, 32, samples=1)),
    }
    assert bench.table.problems(row) == ["build: ValueError: no such network"]
    bench.table.write_results([row], tmp_path / "results" / "table.json")
    assert "no such network" in (tmp_path / "results" / "table.md").read_text()


def test_every_builder_has_its_row_in_the_table(bench: SimpleNamespace) -> None:
    rows = {row["name"]: row for row in json.loads(bench.main.RESULTS.read_text())}
    assert set(bench.main.builders()) <= set(rows) <= set(bench.main.networks())
    troubled = {name for name, row in rows.items() if bench.table.problems(row)}
    assert troubled == set(bench.maps.KNOWN)
