"""The search against all placements of a small network, and its file against its result."""

from __future__ import annotations

from importlib import import_module
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import onnx
import pytest
from keras import layers
from planted_faults import scale_channel

import qat_lib
from qat_lib.core.spec import QuantizationSpec
from qat_lib.errors import ConfigError
from qat_lib.files.journal import Journal
from qat_lib.keras.search import PlacementResult
from qat_lib.keras.search import search as search_function
from qat_lib.keras.search.candidates import Candidates
from qat_lib.optimization.metrics import choose_metric
from qat_lib.optimization.trial import EngineTrial
from qat_lib.ptq import PtqRecipe

INPUTS = np.random.default_rng(0).normal(size=(64, 8, 8, 3)).astype(np.float32)
RECIPE = PtqRecipe(backend="tensorrt", batch_size=64)


def network() -> Any:
    """Return three convolutions and a classifier; conv1 and conv2 have an outlier channel."""
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((8, 8, 3), name="image")
    for number in (1, 2, 3):
        x = layers.Conv2D(8, 3, name=f"conv{number}")(x)
        x = layers.ReLU(name=f"relu{number}")(x)
    x = layers.Flatten(name="flat")(x)
    model = keras.Model(inputs, layers.Dense(5, name="logits")(x), name="small")
    scale_channel(model, "conv1", "conv2", 3, 100.0)
    scale_channel(model, "conv2", "conv3", 5, 100.0)
    return model


def found(max_drop: float, **options: Any) -> PlacementResult:
    given: dict[str, Any] = {"metric": "fidelity", "recipe": RECIPE, "backend": None, **options}
    return qat_lib.search(network(), INPUTS, max_drop=max_drop, **given)


@pytest.fixture(scope="module")
def drops() -> dict[frozenset[str], float]:
    """The drop of every placement, each quantized on its own."""
    model = network()
    candidates = Candidates(
        model, INPUTS, INPUTS, recipe=RECIPE, base=QuantizationSpec(), journal=Journal(None, "")
    )
    _, metric = choose_metric(candidates.reference, None, "fidelity")
    values = {}
    for size in range(len(candidates.layers) + 1):
        for each in map(frozenset, combinations(candidates.layers, size)):
            values[each] = 1.0 - candidates.value(each, metric)
    return values


@pytest.mark.matrix_except("0.03")
@pytest.mark.parametrize("max_drop", [0.5, 0.03, 0.01])
def test_search_finds_the_fewest_layers(
    drops: dict[frozenset[str], float], max_drop: float
) -> None:
    least = min(len(floats) for floats, drop in drops.items() if drop <= max_drop)
    result = found(max_drop)
    assert len(result.floats) == least
    assert result.proven
    assert result.drop <= max_drop
    assert result.drop == pytest.approx(
        drops[frozenset(each.layer for each in result.floats)], abs=1e-6
    )
    assert result.found


def test_search_finds_the_planted_layers(drops: dict[frozenset[str], float]) -> None:
    planted = frozenset(("conv2", "conv3"))
    others = [drop for floats, drop in drops.items() if len(floats) <= 2 and floats != planted]
    assert drops[planted] < 0.5 * min(others)
    result = found((drops[planted] + min(others)) / 2)
    assert {each.layer for each in result.floats} == planted
    assert all(each.drop_in_int8 > result.max_drop for each in result.floats)


def pairs(path: Path) -> list[tuple[str, ...]]:
    """Return operator and tensors of each Q and DQ node of a file."""
    graph = onnx.load(path).graph
    kinds = ("QuantizeLinear", "DequantizeLinear")
    return [(n.op_type, *n.input, *n.output) for n in graph.node if n.op_type in kinds]


@pytest.mark.matrix
def test_the_file_of_the_spec_has_the_placement_searched(tmp_path: Path) -> None:
    model = network()
    candidates = Candidates(
        model, INPUTS, INPUTS, recipe=RECIPE, base=QuantizationSpec(), journal=Journal(None, "")
    )
    result = found(0.02)
    floats = frozenset(each.layer for each in result.floats)
    assert 0 < len(floats) < 4
    searched, again = tmp_path / "searched.onnx", tmp_path / "again.onnx"
    qat_lib.export_onnx(candidates.quantized(floats), searched, plan=result.plan)
    result.save(tmp_path / "best.yaml")
    spec = QuantizationSpec.load(tmp_path / "best.yaml")
    quantized = qat_lib.quantize_model(model, "full", spec, "auto")
    qat_lib.calibrate(quantized, INPUTS, batch_size=64)
    qat_lib.correct_bias(quantized, INPUTS, batch_size=64)
    qat_lib.export_onnx(quantized, again)
    assert pairs(again) == pairs(searched)
    assert len(pairs(again)) == len(result.plan.quantizers) + len(result.plan.by_kind("activation"))


def test_a_residual_block_is_not_split_in_silence() -> None:
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((8, 8, 4), name="image")
    x = layers.ReLU(name="relu0")(layers.Conv2D(8, 3, padding="same", name="stem")(x))
    y = layers.ReLU(name="relu1")(layers.Conv2D(8, 3, padding="same", name="a")(x))
    y = layers.Conv2D(8, 3, padding="same", name="b")(y)
    y = layers.ReLU(name="relu2")(layers.Add(name="add")([y, x]))
    model = keras.Model(inputs, layers.Conv2D(4, 1, name="last")(y))
    data = np.random.default_rng(0).normal(size=(8, 8, 8, 4)).astype(np.float32)
    candidates = Candidates(
        model, data, data, recipe=RECIPE, base=QuantizationSpec(), journal=Journal(None, "")
    )

    def readers(floats: frozenset[str]) -> set[tuple[str, int]]:
        plan = candidates.placement(floats).plan
        return {(c.layer, c.input) for entry in plan.quantizers for c in entry.consumers}

    assert ("add", 1) in readers(frozenset())
    assert not {("add", 0), ("add", 1)} & readers(frozenset(("b",)))
    assert candidates.placement(frozenset(("b",))).splits == ()
    base = QuantizationSpec().add("add", quantization_index=[1])
    forced = Candidates(model, data, data, recipe=RECIPE, base=base, journal=Journal(None, ""))
    plain = forced._planned(frozenset(("b",)))
    assert plain.splits == (("b", "add"),)
    assert forced.placement(frozenset(("b",))).splits == ()


class Clock:
    """Latencies by how many layers are quantized, in place of engines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, milliseconds: Any) -> None:
        self.built: list[str] = []
        self._milliseconds = milliseconds
        monkeypatch.setattr(
            EngineTrial, "build_float", lambda *_: SimpleNamespace(path=Path("float"))
        )
        monkeypatch.setattr(EngineTrial, "build_int8", self.build)
        monkeypatch.setattr(EngineTrial, "compare", self.compare)
        monkeypatch.setattr(EngineTrial, "on", self.on)

    def on(self, folder: Path, *_: Any) -> EngineTrial:
        return EngineTrial(folder=folder, backend="onnxruntime")

    def build(self, quantized: Any, _: str) -> Any:
        weights = [n for n in qat_lib.model_quantizers(quantized) if "kernel" in n]
        name = ",".join(sorted(n.removesuffix("_kernel_quantizer") for n in weights))
        self.built.append(name)
        return SimpleNamespace(path=Path(name))

    def compare(self, engines: dict[str, Path]) -> dict[str, float]:
        return {name: self._milliseconds(str(path)) for name, path in engines.items()}


@pytest.mark.matrix
def test_int8_that_is_not_faster_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, lambda name: 1.0 if name == "float" else 0.99)
    slow = found(0.5, backend="auto")
    assert slow.verdict == "keep fp32"
    assert not slow.found
    assert "Verdict: keep FP32: this placement is not faster" in str(slow)
    Clock(monkeypatch, lambda name: 1.0 if name == "float" else 0.98)
    assert found(0.5, backend="auto").found


@pytest.mark.matrix
def test_fastest_leaves_in_float_what_is_faster_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def milliseconds(name: str) -> float:
        return 9.0 if name == "float" else 1.0 + ("conv1" in name) - 0.1 * name.count(",")

    clock = Clock(monkeypatch, milliseconds)
    result = found(0.0, backend="auto", objective="fastest", metric=lambda *_: 1.0)
    assert [each.layer for each in result.floats] == ["conv1"]
    assert result.speed is not None
    assert result.speed.int8_ms < result.speed.all_int8_ms
    assert len(clock.built) <= 1 + 4 + 2


@pytest.mark.matrix
def test_no_placement_within_the_bound_keeps_float() -> None:
    def metric(outputs: Any, reference: Any) -> float:
        return 1.0 if outputs is reference else 0.0

    result = found(0.1, metric=metric)
    assert result.verdict == "keep fp32"
    assert result.floats == ()
    assert "no placement is within the bound" in str(result)
    assert result.metric == "metric"


@pytest.mark.matrix
def test_a_bound_that_only_float_keeps_is_no_placement() -> None:
    result = found(0.0)
    assert result.verdict == "keep fp32"
    assert result.drop > 0


@pytest.mark.matrix
def test_an_interrupted_search_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = found(0.02)
    quantized, built = Candidates.quantized, list[str]()

    def counted(self: Candidates, floats: frozenset[str]) -> Any:
        built.append(",".join(sorted(floats)))
        if len(built) == 4:
            raise KeyboardInterrupt
        return quantized(self, floats)

    monkeypatch.setattr(Candidates, "quantized", counted)
    with pytest.raises(KeyboardInterrupt):
        found(0.02, journal=tmp_path / "j")
    first = len(built)
    again = found(0.02, journal=tmp_path / "j")
    assert again.spec.to_list() == whole.spec.to_list()
    assert not set(built[:3]) & (set(built[first:]) - {""})  # the ranking's own model is made again
    assert not (tmp_path / "j").exists()


@pytest.mark.parametrize("changed", ["labels", "calibration"])
def test_journal_is_of_the_same_data(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[str] = []

    def opened(path: Path | None, mark: str) -> Journal:
        marks.append(mark)
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("qat_lib.keras.search.search"), "Journal", opened)
    data = {"labels": np.zeros(len(INPUTS), np.int64), "calibration": INPUTS}
    for given in (data, data, data | {changed: data[changed] + 1}):
        with pytest.raises(KeyboardInterrupt):
            found(0.1, **given)
    assert marks[0] == marks[1] != marks[2]


@pytest.mark.matrix
def test_a_real_engine_is_built_and_timed() -> None:
    pytest.importorskip("onnxruntime")
    # Its range covers the planted channels: with another this network is at the edge of the check.
    recipe = PtqRecipe(calibrator="percentile", backend="tensorrt", batch_size=64)
    result = found(1.0, recipe=recipe, backend="onnxruntime", seconds=0.05)
    assert result.speed is not None
    assert result.speed.backend == "onnxruntime"
    assert result.speed.float_precision == "fp32"
    assert 0 < result.speed.int8_ms < 1000
    assert result.found == (result.speed.ratio >= 1.02)
    assert "times as fast as FP32" in str(result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_drop": -0.1}, "max_drop from 0 to 1"),
        ({"max_drop": 0.1, "objective": "best"}, "fewest or fastest"),
        ({"max_drop": 0.1, "metric": "f1"}, "Expected a metric"),
        ({"max_drop": 0.1, "metric": "accuracy"}, "Expected labels"),
        ({"max_drop": 0.1, "labels": [1, 2]}, "a label for each"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        found(**options)


def test_search_is_the_function_of_the_package() -> None:
    assert search_function is qat_lib.search
