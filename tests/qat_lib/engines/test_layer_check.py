"""The first layer that departs is named, also where more outputs hide the fault."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_networks import ResidualNetwork, write_network

from qat_lib.engines import BuildSpec, build_engine, read_manifest
from qat_lib.engines.check import check_engine
from qat_lib.engines.layer_check import compare_layers, first_departing, layer_ends
from qat_lib.engines.onnxruntime import OnnxRuntimeEngine
from qat_lib.onnx_view.graph import OnnxGraph


@pytest.fixture(scope="module")
def onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("n") / "n.onnx", ResidualNetwork(seed=1), "int8")


@pytest.fixture(scope="module")
def engine(onnx: Path) -> Path:
    spec = BuildSpec(backend="onnxruntime", max_batch_size=4)
    return build_engine(onnx, spec, output=onnx.with_name("n.engine")).path


@pytest.fixture
def requests(engine: Path) -> list[Mapping[str, Any]]:
    (info,) = read_manifest(engine).inputs
    shape = (4, *info.shape[1:])
    return [{info.name: np.random.default_rng(0).normal(size=shape).astype(np.float32)}]


def break_from(monkeypatch: pytest.MonkeyPatch, wrong: set[str], most_outputs: int = 99) -> None:
    """Make engines wrong in some tensors, if no more outputs than that are asked for."""
    run = OnnxRuntimeEngine._run

    def broken(self: Any, request: Any, values: Any) -> dict[str, Any]:
        answers = run(self, request, values)
        if len(answers) <= most_outputs:
            for name in wrong & answers.keys():
                answers[name] = answers[name] + 2 * answers[name].std() + 1
        return answers

    monkeypatch.setattr(OnnxRuntimeEngine, "_run", broken)


def test_layer_ends_are_behind_quantizers_and_kernels(onnx: Path) -> None:
    graph = OnnxGraph.load(onnx)
    ends = layer_ends(graph)
    assert len(ends) > 6
    for tensor in ends:
        producer = graph.producer(tensor)
        assert producer is not None
        assert producer.op == "DequantizeLinear" or not any(
            reader.op == "QuantizeLinear" for reader in graph.consumers(tensor)
        )
    assert not set(ends) & set(graph.outputs)
    order = [graph.producer(tensor).index for tensor in ends]  # type: ignore[union-attr]
    assert order == sorted(order)


@pytest.mark.parametrize("place", [0, 3, -1])
def test_compare_layers_names_the_first_that_departs(
    onnx: Path, engine: Path, requests: Any, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = OnnxGraph.load(onnx)
    ends = layer_ends(graph)
    place %= len(ends)
    break_from(monkeypatch, {*ends[place:], *graph.outputs})
    found = compare_layers(read_manifest(engine), onnx, requests)
    assert [each.departs for each in found] == [False] * place + [True] * (len(ends) - place)
    first = first_departing(found)
    assert first is not None
    assert (first.tensor, first.layer) == (ends[place], graph.keras_layer(ends[place]))


@pytest.mark.parametrize("place", [0, 2, 5])
def test_compare_layers_bisects_a_fault_that_more_outputs_hide(
    onnx: Path, engine: Path, requests: Any, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = OnnxGraph.load(onnx)
    ends = layer_ends(graph)
    break_from(monkeypatch, {*ends[place:], *graph.outputs}, most_outputs=2)
    steps: list[tuple[str, int, int]] = []
    found = compare_layers(
        read_manifest(engine), onnx, requests, on_progress=lambda *step: steps.append(step)
    )
    first = first_departing(found)
    assert first is not None
    assert first.tensor == ends[place]
    assert len(found) <= len(ends).bit_length()
    assert steps[-1][1] == steps[-1][2]


def test_compare_layers_of_a_sound_engine_finds_nothing(
    onnx: Path, engine: Path, requests: Any
) -> None:
    found = compare_layers(read_manifest(engine), onnx, requests)
    assert len(found) == len(layer_ends(OnnxGraph.load(onnx)))
    assert first_departing(found) is None
    assert max(each.difference for each in found) < 0.05


def test_check_engine_names_the_layer_and_fails(
    onnx: Path, engine: Path, requests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = OnnxGraph.load(onnx)
    ends = layer_ends(graph)
    break_from(monkeypatch, {*ends[4:], *graph.outputs})
    (inputs,) = requests[0].values()
    found = check_engine(engine, onnx, requests=2, inputs=inputs, layers="failed")
    assert not found.passed
    assert found.first_layer == graph.keras_layer(ends[4])
    assert f"The first layer that departs is {found.first_layer}" in found.message
    assert found.samples == 4
    assert "2 random requests and 4 real inputs" in found.message


def test_check_engine_says_that_the_engine_is_of_another_graph(onnx: Path, tmp_path: Path) -> None:
    other = write_network(tmp_path / "other.onnx", ResidualNetwork(seed=5), "int8")
    spec = BuildSpec(backend="onnxruntime", max_batch_size=4)
    engine = build_engine(other, spec, output=tmp_path / "other.engine").path
    found = check_engine(engine, onnx, requests=3, layers="failed")
    assert not found.passed
    assert found.first_layer is None
    assert "Expected the ONNX file that other.engine was built from" in found.message
    assert str(other) in found.message


def test_check_engine_judges_real_inputs_apart(
    onnx: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = OnnxRuntimeEngine._run

    def wrong_for_large(self: Any, request: Any, values: Any) -> dict[str, Any]:
        answers = run(self, request, values)
        factor = -1.0 if np.abs(values[0]).max() > 50 else 1.0
        return {name: factor * value for name, value in answers.items()}

    monkeypatch.setattr(OnnxRuntimeEngine, "_run", wrong_for_large)
    (info,) = read_manifest(engine).inputs
    inputs = np.random.default_rng(0).normal(size=(6, *info.shape[1:])).astype(np.float32)
    assert check_engine(engine, onnx, requests=3, inputs=inputs).passed
    failed = check_engine(engine, onnx, requests=3, inputs=100 * inputs)
    assert not failed.passed
    assert failed.layers == ()


def test_check_engine_judges_labels_of_real_inputs(
    onnx: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = OnnxRuntimeEngine._run

    def swap_the_best(self: Any, request: Any, values: Any) -> dict[str, Any]:
        """Exchange the two largest logits, which may hardly differ."""
        answers = run(self, request, values)
        for logits in answers.values():
            for row in logits:
                best = row.argsort()[-2:]
                row[best] = row[best[::-1]]
        return answers

    monkeypatch.setattr("qat_lib.engines.agreement.INT8_BOUND", 10.0)
    monkeypatch.setattr(OnnxRuntimeEngine, "_run", swap_the_best)
    (info,) = read_manifest(engine).inputs
    # A seed without equal logits, which keep their place.
    inputs = np.random.default_rng(1).normal(size=(40, *info.shape[1:])).astype(np.float32)
    assert check_engine(engine, onnx, requests=3).passed
    found = check_engine(engine, onnx, requests=3, inputs=inputs)
    assert not found.passed
    assert found.label_agreement == 0
    assert "100.0% of the real inputs get another label than from the reference" in found.message


def test_check_engine_takes_images_with_channels_last(onnx: Path, engine: Path) -> None:
    (info,) = read_manifest(engine).inputs
    inputs = np.zeros((5, *info.shape[2:], info.shape[1]), np.float32)
    found = check_engine(engine, onnx, requests=0, inputs=inputs)
    assert (found.samples, found.requests) == (5, 2)
    wrong = check_engine(engine, onnx, inputs=np.zeros((5, 7, 7, 2), np.float32))
    assert not wrong.passed
    assert "Expected at least 1 inputs of shape" in wrong.message
