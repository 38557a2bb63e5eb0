"""Errors of tensors against their definition."""

from __future__ import annotations

import numpy as np
import pytest
from planted_faults import images, network, quantized

import qat_lib
from qat_lib.keras.diagnosis.sites import read_sites
from qat_lib.keras.diagnosis.statistics import ErrorSums, decibels, watch_errors
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.keras.quantizers import fake_quantize


@pytest.fixture(scope="module")
def watched() -> tuple[object, dict[str, ErrorSums]]:
    model = quantized(network())
    sites = read_sites(LayerGraph(model))
    x = images(20)
    return model, watch_errors(model, [x[:12], x[12:]], sites)


def test_watch_errors_gives_sqnr_and_cosine_of_the_input(
    watched: tuple[object, dict[str, ErrorSums]],
) -> None:
    model, sums = watched
    x = images(20).astype(np.float64)
    quantizer = qat_lib.model_quantizers(model)["image_quantizer"]
    q = np.asarray(fake_quantize(images(20), quantizer.amax), np.float64)
    found = sums["image_quantizer"]
    assert found.sqnr_db == pytest.approx(10 * np.log10((x**2).sum() / ((q - x) ** 2).sum()), 1e-4)
    cosine = (x * q).sum() / np.sqrt((x**2).sum() * (q**2).sum())
    assert found.cosine == pytest.approx(cosine, abs=1e-6)
    assert found.count == x.size
    beyond = np.abs(x) > float(quantizer.amax)
    assert found.clipped == beyond.sum()
    np.testing.assert_allclose(found.peaks, np.abs(x).max(axis=(0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(found.signal, (x**2).sum(axis=(0, 1, 2)), rtol=1e-5)


def test_watch_errors_takes_inputs_of_the_whole_quantized_model(
    watched: tuple[object, dict[str, ErrorSums]],
) -> None:
    model, sums = watched
    for quantizer in qat_lib.model_quantizers(model).values():
        quantizer.disable()
    off = watch_errors(model, [images(20)], read_sites(LayerGraph(model)))
    assert off == {}
    for quantizer in qat_lib.model_quantizers(model).values():
        quantizer.enable()
    again = watch_errors(model, [images(20)], read_sites(LayerGraph(model)))
    for name, each in sums.items():
        np.testing.assert_allclose(again[name].signal, each.signal, rtol=1e-4)


def test_weights_count_once_and_by_their_channels(
    watched: tuple[object, dict[str, ErrorSums]],
) -> None:
    _, sums = watched
    kernel = sums["conv2_kernel_quantizer"]
    assert kernel.count == 3 * 3 * 8 * 8
    assert kernel.clipped == 0
    assert len(kernel.peaks) == len(kernel.input_peaks) == 8
    assert len(sums["depth_kernel_quantizer"].peaks) == 8
    assert len(sums["depth_kernel_quantizer"].input_peaks) == 0


def test_clip_share_is_that_of_the_noise() -> None:
    sums = ErrorSums.of_width(1)
    x = np.array([[1.0], [3.0]], np.float32)
    sums.add(x, np.array([[1.5], [2.0]], np.float32), 2.0, unsigned=False)
    assert sums.clip_share == pytest.approx(1 / 1.25)
    assert ErrorSums.of_width(1).clip_share == 0
    assert ErrorSums.of_width(1).cosine == 1


def test_decibels_of_no_noise_are_infinite() -> None:
    assert decibels(1.0, 0.0) == float("inf")
    assert decibels(100.0, 1.0) == pytest.approx(20.0)
