"""Metrics and bounds of a search."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import ConfigError
from qat_lib.keras.search import choose_metric, parse_drop
from qat_lib.optimization.metrics import metric_key

CLASSES = [np.array([[1.0, 2.0], [3.0, 1.0], [0.0, 1.0], [1.0, 0.0]])]
OTHER = [np.array([[1.0, 2.0], [1.0, 3.0], [0.0, 1.0], [1.0, 0.0]])]
LABELS = [1, 1, 1, 1]


def test_metrics_by_name() -> None:
    for name, expected in (("accuracy", 0.75), ("agreement", 0.75)):
        found, metric = choose_metric(CLASSES, LABELS, name)
        assert found == name
        assert metric(OTHER, CLASSES) == expected
    _, accuracy = choose_metric(CLASSES, LABELS, "accuracy")
    assert accuracy(CLASSES, CLASSES) == 0.5
    _, fidelity = choose_metric(CLASSES, None, "fidelity")
    assert fidelity(CLASSES, CLASSES) == 1.0
    assert fidelity([CLASSES[0] + 0.1], CLASSES) == pytest.approx(1 - 0.1 / np.std(CLASSES[0]))
    assert fidelity([CLASSES[0] + 100], CLASSES) == 0.0


def test_nan_is_no_class() -> None:
    """The largest of NaN is the first one for NumPy, which would count as class 0."""
    broken = [np.full_like(CLASSES[0], np.nan)]
    _, accuracy = choose_metric(CLASSES, [0, 0, 0, 0], "accuracy")
    _, agreement = choose_metric(CLASSES, None, "agreement")
    assert accuracy(broken, CLASSES) == 0.0
    assert agreement(broken, CLASSES) == agreement(broken, broken) == 0.0


def test_default_metric_follows_labels_and_outputs() -> None:
    image = [np.zeros((2, 4, 4, 1))]
    assert choose_metric(CLASSES, LABELS)[0] == "accuracy"
    assert choose_metric(CLASSES)[0] == "agreement"
    assert choose_metric(image, LABELS)[0] == "fidelity"
    with pytest.raises(ConfigError, match="take fidelity"):
        choose_metric(image, None, "agreement")


@pytest.mark.parametrize(
    ("text", "value"), [("0.5%", 0.005), ("1 %", 0.01), ("0.02", 0.02), (".5%", 0.005), ("0", 0)]
)
def test_parse_drop(text: str, value: float) -> None:
    assert parse_drop(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "x", "-1%", "101%", "1.5", "5 points", "nan"])
def test_parse_drop_refuses_the_rest(text: str) -> None:
    with pytest.raises(ConfigError, match=r"0\.5% or 0\.005"):
        parse_drop(text)


KEYS = """
import sys
sys.path.insert(0, sys.argv[1])
import user_metrics
from qat_lib.optimization.metrics import metric_key
print([metric_key(metric) for metric in user_metrics.METRICS])
"""
METRICS = """
import functools

def plain(outputs, reference):
    return 1.0

def bounded(limit, scale=1):
    def metric(outputs, reference, *, share=0.5):
        return limit * scale
    return metric

METRICS = [plain, bounded(1), bounded(2), bounded(1), lambda outputs, reference: 2.0]
"""


def keys(folder: Path) -> list[Any]:
    """Return the keys of a user's metrics, computed in a new process."""
    command = [sys.executable, "-c", KEYS, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found: list[Any] = ast.literal_eval(done.stdout)
    return found


def test_metric_key_identifies_functions_across_processes(tmp_path: Path) -> None:
    module = tmp_path / "user_metrics.py"
    module.write_text(METRICS)
    first = keys(tmp_path)
    assert keys(tmp_path) == first
    assert first[1] == first[3]
    assert len({str(key) for key in first}) == 4
    module.write_text(METRICS.replace("limit * scale", "limit + scale"))
    assert not [key for key in keys(tmp_path) if key in first]


def test_metric_key_of_other_callables_is_their_text() -> None:
    class Metric:
        def __call__(self, outputs: object, reference: object) -> float:
            return 0.0

    metric = Metric()
    assert metric_key(metric) == repr(metric)
    scope: dict[str, Any] = {}
    exec("def typed(outputs, reference): return 0.0", scope)
    assert metric_key(scope["typed"]) == repr(scope["typed"])
