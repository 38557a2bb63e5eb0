"""Calibrators of single quantizers: collected values and resulting ranges."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qat_lib.calibrators.methods import range_from_histogram
from qat_lib.errors import CalibrationError
from qat_lib.torch import calib
from qat_lib.torch import nn as quant_nn
from qat_lib.torch.calib import HistogramCalibrator, MaxCalibrator, create_calibrator
from qat_lib.torch.calibration import calibrate
from qat_lib.torch.naming import model_quantizers
from qat_lib.torch.tensor_quant import QuantDescriptor

X = torch.tensor([[1.0, -4.0, 2.0], [0.5, 3.0, -1.0]])


def test_max_calibrator_keeps_the_largest_magnitude() -> None:
    calibrator = MaxCalibrator(8, None, False)
    assert calibrator.compute_amax() is None
    for x in (X, 2 * X, X):
        calibrator.collect(x)
    assert calibrator.compute_amax().item() == 8.0
    calibrator.reset()
    assert calibrator.compute_amax() is None


@pytest.mark.parametrize(
    ("axis", "expected"),
    [(0, [[4.0], [3.0]]), ((1,), [[1.0, 4.0, 2.0]]), ((-1,), [[1, 4, 2]]), ((0, 1), X.abs())],
)
def test_max_calibrator_keeps_axes(axis: int | tuple[int, ...], expected: object) -> None:
    calibrator = MaxCalibrator(8, axis, False)
    calibrator.collect(X)
    calibrator.collect(X / 2)
    torch.testing.assert_close(calibrator.compute_amax(), torch.as_tensor(expected).float())


def test_max_calibrator_names_a_change_of_shape() -> None:
    calibrator = MaxCalibrator(8, 0, False)
    calibrator.collect(X)
    with pytest.raises(CalibrationError, match=r"\(2, 1\), as of the tensors before.*\(3, 1\)"):
        calibrator.collect(X.T)


def test_unsigned_max_calibrator_ignores_negative_values() -> None:
    calibrator = MaxCalibrator(8, None, True)
    calibrator.collect(X)
    assert calibrator.compute_amax().item() == 3.0


def test_max_calibrator_tracks_each_range_where_asked() -> None:
    calibrator = MaxCalibrator(8, None, False, track_amax=True)
    for factor in (1.0, 0.5):
        calibrator.collect(factor * X)
    assert [float(amax) for amax in calibrator.amaxs] == [4.0, 2.0]
    quiet = MaxCalibrator(8, None, False)
    quiet.collect(X)
    assert quiet.amaxs == []


@pytest.mark.parametrize("method", ["max", "percentile", "entropy", "mse"])
@pytest.mark.parametrize("unsigned", [False, True])
def test_histogram_calibrator_has_the_methods_of_calibrate(method: str, unsigned: bool) -> None:
    torch.manual_seed(0)
    calibrator = HistogramCalibrator(6, None, unsigned)
    for size in (1.0, 3.0):
        calibrator.collect(torch.randn(500) * size)
    found = calibrator.compute_amax(method, percentile=98.0)
    expected = range_from_histogram(calibrator.histogram, method, 98.0, 6, unsigned=unsigned)
    assert found.item() == np.float32(expected)


def test_histogram_calibrator_takes_9999_hundredths_by_default() -> None:
    calibrator = HistogramCalibrator()
    calibrator.collect(torch.cat([torch.ones(99_990), torch.full((10,), 50.0)]))
    assert calibrator.compute_amax().item() < 1.1
    calibrator.collect(torch.full((1000,), 50.0))
    assert calibrator.compute_amax().item() == 50.0


def test_histogram_calibrator_begins_empty() -> None:
    calibrator = HistogramCalibrator()
    assert calibrator.compute_amax() is None
    calibrator.collect(torch.zeros(3))
    assert calibrator.compute_amax().item() == 0.0
    calibrator.reset()
    assert calibrator.compute_amax() is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_histogram_calibrator_refuses_non_finite_values(bad: float) -> None:
    with pytest.raises(CalibrationError, match="NaN or infinite"):
        HistogramCalibrator().collect(torch.tensor([1.0, bad]))


def test_histogram_calibrator_refuses_an_axis() -> None:
    with pytest.raises(CalibrationError, match=r"A histogram gives one range.*axis=0"):
        HistogramCalibrator(8, 0)


def published_collect_stats(model: nn.Module, batches: list[torch.Tensor]) -> None:
    """The loop of pytorch-quantization's tutorial, as printed but for the data."""
    for _name, module in model.named_modules():
        if isinstance(module, quant_nn.TensorQuantizer):
            if module._calibrator is not None:
                module.disable_quant()
                module.enable_calib()
            else:
                module.disable()
    for image in batches:
        model(image)
    for _name, module in model.named_modules():
        if isinstance(module, quant_nn.TensorQuantizer):
            if module._calibrator is not None:
                module.enable_quant()
                module.disable_calib()
            else:
                module.enable()


def published_compute_amax(model: nn.Module, **kwargs: Any) -> None:
    """The tutorial's second loop."""
    for _name, module in model.named_modules():
        if isinstance(module, quant_nn.TensorQuantizer) and module._calibrator is not None:
            if isinstance(module._calibrator, calib.MaxCalibrator):
                module.load_calib_amax()
            else:
                module.load_calib_amax(**kwargs)


@pytest.mark.parametrize("method", ["percentile", "mse", "entropy"])
def test_published_loops_give_ranges_of_calibrate(method: str) -> None:
    torch.manual_seed(5)
    histogram = QuantDescriptor(calib_method="histogram")
    by_hand = nn.Sequential(
        quant_nn.QuantConv2d(3, 4, 3, quant_desc_input=histogram),
        nn.ReLU(),
        quant_nn.QuantConv2d(4, 2, 1, quant_desc_input=histogram),
    )
    model = copy.deepcopy(by_hand)
    batches = [torch.randn(8, 3, 9, 9) * factor for factor in (1.0, 2.0)]
    with torch.no_grad():
        published_collect_stats(by_hand, batches)
        published_compute_amax(by_hand, method=method)
    calibrate(model, batches, method)
    assert all(quantizer.amax is not None for quantizer in model_quantizers(by_hand).values())
    for name, quantizer in model_quantizers(model).items():
        found = model_quantizers(by_hand)[name].amax
        torch.testing.assert_close(found, quantizer.amax, rtol=0, atol=0)
    x = batches[0]
    torch.testing.assert_close(by_hand(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [MaxCalibrator, HistogramCalibrator])
def test_calibrators_default_to_signed_8_bits(kind: type) -> None:
    made = kind()
    assert (made.num_bits, made.axis, made.unsigned) == (8, None, False)


def test_create_calibrator_goes_by_the_descriptor() -> None:
    assert isinstance(create_calibrator(QuantDescriptor()), MaxCalibrator)
    made = create_calibrator(QuantDescriptor(calib_method="histogram", num_bits=5, unsigned=True))
    assert isinstance(made, HistogramCalibrator)
    assert (made.num_bits, made.unsigned) == (5, True)
