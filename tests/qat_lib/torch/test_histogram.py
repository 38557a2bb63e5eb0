"""PyTorch's histogram: the same counts as TensorFlow's and NumPy's, of any data."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import torch

from qat_lib.calibrators.histogram import MagnitudeHistogram
from qat_lib.keras.calibration import Histogram as KerasHistogram
from qat_lib.torch import histogram as module
from qat_lib.torch.histogram import Histogram


def batches() -> list[np.ndarray]:
    generator = np.random.default_rng(6)
    kinds = [
        np.zeros((3, 5)),
        generator.normal(size=(50, 40)) * 1e-5,
        np.maximum(generator.normal(size=(300, 30)), 0),
        generator.exponential(size=(4, 1000)) ** 2,
        generator.normal(size=(7,)) * 1e30,
        np.arange(4096) / 4096,
    ]
    return [np.asarray(kind, np.float32) for kind in kinds]


def test_counts_are_those_of_tensorflow_and_numpy() -> None:
    ours, theirs, plain = Histogram(), KerasHistogram(), MagnitudeHistogram()
    for x in batches():
        largest = float(np.abs(x).max())
        ours.add(torch.from_numpy(x), largest)
        theirs.add(tf.constant(x), largest)
        plain.add(x, largest)
        for other in (theirs, plain):
            np.testing.assert_array_equal(ours.counts, other.counts)
            assert (ours.upper, ours.observed_max) == (other.upper, other.observed_max)
    assert ours.counts.sum() == sum(x.size for x in batches())


def test_counts_on_edges_are_those_of_tensorflow() -> None:
    edges = np.arange(0, 4097, dtype=np.float32) * np.float32(0.1 / 4096)
    near = [np.nextafter(edges, np.float32(side)) for side in (0, 1)]
    x = np.concatenate([edges, *near])
    ours, theirs = Histogram(), KerasHistogram()
    ours.add(torch.from_numpy(x), float(x.max()))
    theirs.add(tf.constant(x), float(x.max()))
    np.testing.assert_array_equal(ours.counts, theirs.counts)


def test_large_tensors_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1000)
    whole, parts = Histogram(), Histogram()
    whole.add(x, float(x.abs().max()))
    monkeypatch.setattr(module, "PART", 64)
    parts.add(x, float(x.abs().max()))
    np.testing.assert_array_equal(whole.counts, parts.counts)


def test_half_precision_is_counted_as_float32() -> None:
    x = torch.randn(200).half()
    ours, theirs = Histogram(), Histogram()
    ours.add(x, float(x.abs().max()))
    theirs.add(x.float(), float(x.abs().max()))
    np.testing.assert_array_equal(ours.counts, theirs.counts)


def test_gains_add_up_as_in_tensorflow_and_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 100)
    ours, theirs, plain = Histogram(), KerasHistogram(), MagnitudeHistogram()
    gains = np.array([0.0, 0.5, 2.0, 8.0, 1.0])
    for scale in (1.0, 5.0):
        x = np.random.default_rng(3).normal(size=(41, 5)).astype(np.float32) * np.float32(scale)
        largest = float(np.abs(x).max())
        ours.add(torch.from_numpy(x), largest, gains=gains)
        theirs.add(tf.constant(x), largest, gains=gains)
        plain.add(x, largest, gains=gains)
    assert plain.costs is not None
    assert plain.costs.sum() == 2 * 41 * gains.sum()
    np.testing.assert_array_equal(ours.costs, plain.costs)
    np.testing.assert_array_equal(theirs.costs, plain.costs)
