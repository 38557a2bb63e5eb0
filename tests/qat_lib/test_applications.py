"""The families of keras.applications through the whole library, with TensorRTQDQCase.

The stages are those of ``benchmarks/applications.py``, which runs every builder at its full size. Here each family is
its smallest member on small images; where that still has hundreds of layers, its first stages with a new head, so that
each kind of block is there. The uncut ones are marked slow.
"""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
from keras import applications, layers

from qat_lib import analyze_onnx

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        names = ("applications", "applications_case", "applications_table")
        main, case, table = (importlib.import_module(name) for name in names)
        yield SimpleNamespace(main=main, case=case, table=table)
        for name in names:
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


def first_stages(builder: Callable[..., Any], last: str, *, before: bool = False) -> Build:
    """Return a builder of the network up to the layer ``last``, or ``before`` it, with a head of its own."""

    def build(shape: tuple[int, int, int]) -> Any:
        model = builder(weights=None, input_shape=shape, include_top=False)
        layer = model.get_layer(last)
        x = layers.GlobalAveragePooling2D(name="gap")(layer.input if before else layer.output)
        outputs = layers.Dense(40, activation="softmax", name="predictions")(x)
        return keras.Model(model.input, outputs, name=model.name)

    return build


def convnext() -> Build:
    # The sums of ConvNeXt's blocks are bare operations, which a model does not list: the next layer reads the last.
    return first_stages(applications.ConvNeXtTiny, "convnext_tiny_stage_1_block_1_depthwise_conv", before=True)


FAMILIES = {
    "ConvNeXt": Network(build=convnext(), int8=15, fused=4, adds=10),
    "DenseNet": Network(build=first_stages(applications.DenseNet121, "pool2_pool"), int8=15, fused=0),
    "EfficientNet": Network(build=first_stages(applications.EfficientNetB0, "block3b_add"), int8=26, fused=2),
    "EfficientNetV2": Network(build=first_stages(applications.EfficientNetV2B0, "block4b_add"), int8=21, fused=3),
    "Inception": Network(build=first_stages(applications.InceptionV3, "mixed3"), int8=31, fused=0, size=80),
    "InceptionResNet": Network(
        build=first_stages(applications.InceptionResNetV2, "block35_2_ac"), int8=27, fused=2, size=80
    ),
    "MobileNet": Network(build=whole(applications.MobileNet, alpha=0.25), int8=28, fused=0),
    "MobileNetV2": Network(build=first_stages(applications.MobileNetV2, "block_5_add"), int8=19, fused=3),
    "MobileNetV3": Network(build=first_stages(applications.MobileNetV3Small, "expanded_conv_5_add"), int8=27, fused=3),
    "NASNet": Network(build=first_stages(applications.NASNetMobile, "normal_concat_1"), int8=91, fused=14, adds=20),
    "ResNet": Network(build=first_stages(applications.ResNet50, "conv3_block4_out"), int8=25, fused=7),
    "ResNetV2": Network(build=first_stages(applications.ResNet50V2, "conv3_block4_out"), int8=25, fused=7),
    "VGG": Network(build=whole(applications.VGG16), int8=16, fused=0),
    "Xception": Network(build=first_stages(applications.Xception, "add_3"), int8=24, fused=4, size=72),
}
UNCUT = (
    *("ConvNeXtTiny", "DenseNet121", "EfficientNetB0", "EfficientNetV2B0", "InceptionResNetV2", "InceptionV3"),
    *("MobileNet", "MobileNetV2", "MobileNetV3Small", "NASNetMobile", "ResNet50", "ResNet50V2", "VGG16", "Xception"),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family(family: str, bench: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.case, "real_images", lambda *arguments: None)
    network = FAMILIES[family]
    keras.utils.clear_session()
    gc.collect()
    row = bench.case.run_stages(bench.case.Case(tmp_path, network.build, network.size, samples=8))
    assert bench.table.problems(row) == []
    assert row["quantization_changes_output"]
    assert row["warnings"] == []
    assert row["float_layers"] == []
    found = row["analysis"]
    adds = network.fused if network.adds is None else network.adds
    assert (found["int8_layers"], found["fused_adds"], found["adds"]) == (network.int8, network.fused, adds)
    planned = row["quantizers"]
    assert row["pairs"] == {
        "activations": planned["activation"] + planned.get("internal", 0),
        "weights": network.int8,
    }
    assert planned["weight"] == network.int8


def test_resnet50_gives_the_engine_that_was_published(bench: SimpleNamespace, tmp_path: Path) -> None:
    """37 INT8 convolutions, 16 more with Add and ReLU in them, two INT8 pools and one Dense, and nothing loose."""
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

    row = {"name": "Broken", **bench.case.run_stages(bench.case.Case(tmp_path, broken, 32, samples=1))}
    assert bench.table.problems(row) == ["build: ValueError: no such network"]
    bench.table.write_results([row], tmp_path / "results" / "table.json")
    assert "no such network" in (tmp_path / "results" / "table.md").read_text()


def test_every_builder_is_in_the_benchmark(bench: SimpleNamespace) -> None:
    assert set(UNCUT) <= set(bench.main.builders())
    assert len(bench.main.builders()) >= 38


@pytest.mark.slow
@pytest.mark.parametrize("name", UNCUT)
def test_an_uncut_network(name: str, bench: SimpleNamespace) -> None:
    row = bench.main.run_in_child(name, 1800)
    assert bench.table.problems(row) == []
    assert row["warnings"] == []
