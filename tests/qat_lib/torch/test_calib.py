"""Calibrators of single quantizers: collected values and resulting ranges."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qat_lib.torch
from qat_lib.calibrators.methods import range_from_histogram
from qat_lib.errors import CalibrationError
from qat_lib.torch import calib
from qat_lib.torch import nn as quant_nn
from qat_lib.torch.calib import (
    HistogramCalibrator,
    MaxCalibrator,
    calibrate_weights,
    create_calibrator,
)
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


@pytest.mark.parametrize(("bins", "made"), [(1, 4096), (2048, 4096), (2049, 8192), (5000, 12288)])
def test_num_bins_is_least_resolution(bins: int, made: int) -> None:
    calibrator = HistogramCalibrator(8, None, False, num_bins=bins, torch_hist=False)
    for size in (1.0, 1.1):
        calibrator.collect(torch.linspace(0, size, 50))
    assert len(calibrator.histogram.counts) == made
    for method in ("percentile", "mse", "entropy"):
        assert 0 < calibrator.compute_amax(method).item() <= np.float32(1.1)
    with pytest.raises(CalibrationError, match=r"num_bins of at least 1\. Received: 0"):
        HistogramCalibrator(num_bins=0)


def test_skip_zeros_counts_other_values() -> None:
    for skip, expected in ((True, 5.0), (False, 0.0)):
        calibrator = HistogramCalibrator(8, None, False, grow_method="stretch", skip_zeros=skip)
        calibrator.collect(torch.tensor([0, 0, 0, 0, 0, 1, 2, 3, 4, 5]))
        calibrator.collect(torch.tensor([0, 0, 0, 0, 0, 6, 7, 8, 9, 10]))
        assert calibrator.compute_amax("percentile", percentile=50).item() == pytest.approx(
            expected, abs=10 / 2048
        )
        calibrator.collect(torch.zeros(3))


@pytest.mark.parametrize(("value", "unsigned"), [(255.0, False), (512.0, True)])
def test_mse_finds_the_value_that_nearly_all_have(value: float, unsigned: bool) -> None:
    x = torch.full((2541,), value)
    x[3] = value + 1
    calibrator = HistogramCalibrator(8, None, unsigned)
    calibrator.collect(x)
    assert calibrator.compute_amax("mse").item() == pytest.approx(value, abs=0.1)


def test_fp8_ranges_come_from_max_and_percentile() -> None:
    calibrator = HistogramCalibrator((4, 3))
    calibrator.collect(X)
    assert calibrator.compute_amax("max").item() == 4.0
    for method in ("mse", "entropy"):
        with pytest.raises(CalibrationError, match="max or percentile for FP8"):
            calibrator.compute_amax(method)


def weighted_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        quant_nn.QuantConv2d(3, 4, 3), quant_nn.QuantConvTranspose2d(4, 5, 3), nn.ReLU()
    )


@pytest.mark.parametrize("method", ["max", "percentile", "mse", "entropy"])
@pytest.mark.parametrize("perchannel", [True, False])
def test_calibrate_weights_equals_calibrators(method: str, perchannel: bool) -> None:
    model = weighted_model()
    calibrate_weights(model, method, perchannel, percentile=90.0)
    for layer, axis in ((model[0], 0), (model[1], 1)):
        count = layer.weight.shape[axis]
        shape = [count if i == axis else 1 for i in range(4)] if perchannel else []
        amax = layer.weight_quantizer.amax
        assert list(amax.shape) == shape
        for channel in range(count if perchannel else 1):
            calibrator = HistogramCalibrator()
            weight = layer.weight.detach()
            calibrator.collect(weight.select(axis, channel) if perchannel else weight)
            expected = calibrator.compute_amax(method, percentile=90.0)
            assert amax.flatten()[channel] == expected
        quantized = layer.weight_quantizer(layer.weight).detach().abs()
        assert (quantized <= amax * (1 + 1e-6)).all()
    assert model(torch.randn(1, 3, 8, 8)).shape == (1, 5, 8, 8)


def test_calibrate_weights_keeps_ranges_in_training() -> None:
    model = qat_lib.torch.quantize_model(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()))
    (quantizer,) = [q for q in model_quantizers(model).values() if q.of_weight]
    assert quantizer.range_policy == "current"
    calibrate_weights(model, percentile=50.0)
    found = quantizer.amax.clone()
    with torch.no_grad():
        quantizer.weight.mul_(2.0)
    torch.testing.assert_close(quantizer.amax, found)
    assert (found < quantizer.range_of(quantizer.weight)).all()


def test_calibrate_weights_refuses_before_it_changes_ranges() -> None:
    model = weighted_model()
    before = model[0].weight_quantizer.amax.clone()
    with torch.no_grad():
        model[1].weight[0] = float("nan")
    with pytest.raises(CalibrationError, match="NaN"):
        calibrate_weights(model)
    torch.testing.assert_close(model[0].weight_quantizer.amax, before)
    with pytest.raises(CalibrationError, match="'Linear' has no module with a weight_quantizer"):
        calibrate_weights(nn.Linear(2, 2))
