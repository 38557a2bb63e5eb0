"""Parity check of a module: findings, and messages about misfitting data."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qat_lib.errors import ExportError, UnsupportedModelError
from qat_lib.torch import check_parity, export_onnx
from qat_lib.torch.parity import ModuleReference


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.relu(self.first(x)))


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return Classifier()


@pytest.fixture(scope="module")
def path(module: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("onnx") / "classifier.onnx"
    return export_onnx(module, file, example_input=torch.zeros(1, 4), opset=18).path


@pytest.fixture
def data() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


def test_parity_agrees_with_the_exported_module(
    module: nn.Module, path: Path, data: np.ndarray
) -> None:
    report = check_parity(module, path, data, layers=True)
    assert report.passed
    assert (report.samples, report.labels_equal) == (50, 50)
    assert str(report).startswith("agrees with PyTorch on 50 samples")
    assert "framework" not in report.to_dict()
    assert [layer.layer for layer in report.layers] == ["first", "relu", "second"]
    assert report.first_difference() is None


def test_parity_names_layer_where_difference_starts(
    module: nn.Module, path: Path, data: np.ndarray
) -> None:
    other: Any = copy.deepcopy(module)
    with torch.no_grad():
        other.first.bias += 0.5
    report = check_parity(other, path, data, layers=True)
    assert not report.passed
    assert str(report).startswith("does NOT agree with PyTorch")
    first = report.first_difference()
    assert first is not None
    assert first.layer == "first"


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x,
        lambda x: [x],
        lambda x: {"x": x},
        lambda x: iter([x[:30], x[30:]]),
        lambda x: x.astype(np.float64),
    ],
)
def test_parity_takes_data_in_several_forms(
    form: Any, module: nn.Module, path: Path, data: np.ndarray
) -> None:
    report = check_parity(module, path, form(data), batch_size=7)
    assert report.passed
    assert report.samples == 50


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": np.zeros((2, 4))}, r"arguments \['x'\]. Received: \['y'\]"),
        (np.zeros((2, 5), np.float32), r"can't run on inputs of the shapes \[\(2, 5\)\]"),
        (np.array([["a"] * 4]), "Expected numbers as inputs"),
        (np.zeros((0, 4), np.float32), "Expected at least one sample to compare ONNX with PyTorch"),
    ],
)
def test_parity_says_what_data_the_module_takes(
    given: Any, message: str, module: nn.Module, path: Path
) -> None:
    with pytest.raises(ExportError, match=message):
        check_parity(module, path, given)


def test_parity_is_of_modules(path: Path, data: np.ndarray) -> None:
    with pytest.raises(UnsupportedModelError, match="Received: str"):
        check_parity("model", path, data)  # type: ignore[arg-type]


def test_parity_names_different_output_counts(path: Path, data: np.ndarray) -> None:
    class Twice(Classifier):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return y, y

    with pytest.raises(ExportError, match=r"Expected 2 outputs as in PyTorch\. ONNX gives 1"):
        check_parity(Twice(), path, data)


def test_module_reference_runs_inference_and_restores_mode() -> None:
    module = nn.Sequential(nn.Dropout(0.9), nn.Flatten()).train()
    reference = ModuleReference(module, ["0", "gone"])
    outputs = reference.run([np.ones((2, 3, 1), np.float32)])
    assert [x.shape for x in outputs] == [(2, 3), (2, 3, 1)]
    assert (outputs[0] == 1).all()
    assert (reference.layers, reference.output_count) == (["0"], 1)
    assert module.training


def test_module_reference_skips_multi_output_layers() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0]

    outputs = ModuleReference(Recurrent(), ["lstm"]).run([np.ones((4, 1, 2), np.float32)])
    assert [x.shape for x in outputs] == [(4, 1, 3), (0,)]
