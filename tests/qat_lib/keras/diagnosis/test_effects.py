"""Effects of sets of quantizers on a model's outputs."""

from __future__ import annotations

import numpy as np
import pytest
from planted_faults import images, network, quantized

import qat_lib
from qat_lib.errors import ConfigError
from qat_lib.keras.correction.lockstep import read_samples
from qat_lib.keras.diagnosis.effects import Switchboard
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.optimization.metrics import choose_measure, effect, log_probabilities


def test_switchboard_gives_float_quantized_and_mixed_outputs() -> None:
    model = network()
    changed = quantized(model)
    whole = np.asarray(changed(images()))
    quantizers = qat_lib.model_quantizers(changed)
    quantizers["relu1_quantizer"].disable()
    graph = LayerGraph(changed)
    with Switchboard(graph, read_samples(graph, images(), 16, 7)) as board:
        assert "relu1_quantizer" not in board.names
        (off,) = board.outputs(())
        (on,) = board.outputs(list(quantizers))
        (one,) = board.outputs(["conv1_kernel_quantizer"])
    np.testing.assert_allclose(off, np.asarray(model(images())), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(on, whole, rtol=1e-4, atol=1e-6)
    assert 0 < np.abs(one - off).max() < np.abs(on - off).max()
    enabled = [name for name, each in quantizers.items() if not each.enabled]
    assert enabled == ["relu1_quantizer"]


def test_kl_is_that_of_the_probabilities() -> None:
    logits = [np.array([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])]
    other = [np.array([[0.0, 1.5, 2.0], [3.0, 0.5, 0.0]])]
    p, q = (np.exp(x[0]) / np.exp(x[0]).sum(axis=1, keepdims=True) for x in (logits, other))
    expected = float(np.mean(np.sum(p * np.log(p / q), axis=1)))
    assert effect("kl", other, logits) == pytest.approx(expected)
    assert effect("kl", [q], [p]) == pytest.approx(expected)
    assert effect("kl", logits, logits) == 0


def test_log_probabilities_takes_logits_that_sum_to_one_by_row() -> None:
    logits = np.array([[2.0, -1.0]])
    np.testing.assert_allclose(np.exp(log_probabilities(logits)).sum(), 1.0)
    assert np.exp(log_probabilities(logits))[0, 0] > 0.9


def test_error_is_relative_to_the_spread_of_the_worst_output() -> None:
    reference = [np.array([[0.0], [2.0]]), np.array([[0.0], [20.0]])]
    moved = [reference[0] + 0.5, reference[1] + 0.5]
    assert effect("error", moved, reference) == pytest.approx(0.5)
    assert effect("error", reference, reference) == 0


def test_choose_measure_follows_the_outputs() -> None:
    classes, one, image = np.zeros((2, 5)), np.zeros((2, 1)), np.zeros((2, 4, 4, 3))
    assert choose_measure([classes]) == "kl"
    assert [choose_measure(outputs) for outputs in ([one], [image], [classes] * 2)] == ["error"] * 3
    assert choose_measure([classes], "error") == "error"
    with pytest.raises(ConfigError, match=r"Received outputs of \(2, 1\): take 'error'"):
        choose_measure([one], "kl")
    with pytest.raises(ConfigError, match="Expected a measure"):
        choose_measure([classes], "mse")
