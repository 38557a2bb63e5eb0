"""TensorQuantizer: range, switches, and the Keras side's steps."""

from __future__ import annotations

import copy
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from torch import nn

import qat_lib
from qat_lib.calibrators.collecting import collecting
from qat_lib.core.ranges import AMAX_FLOOR
from qat_lib.errors import CalibrationError, SpecError
from qat_lib.torch.export_mode import export_mode
from qat_lib.torch.fake_quantization import fake_quantize
from qat_lib.torch.tensor_quant import QuantDescriptor, scaled_e4m3
from qat_lib.torch.tensor_quantizer import TensorQuantizer

X = torch.linspace(-3, 3, 25).reshape(5, 5)


class Owner:
    """What has a quantized weight."""

    weight = X

    def quantized_weight(self, _quantizer: TensorQuantizer) -> torch.Tensor:
        return self.weight


def made(**options: Any) -> TensorQuantizer:
    return TensorQuantizer(QuantDescriptor(**options))


def test_unset_range_is_the_tensors_own() -> None:
    quantizer = made()
    assert (quantizer.amax, quantizer.scale, quantizer.calibrated) == (None, None, False)
    for factor in (1.0, 2.0):
        torch.testing.assert_close(quantizer(factor * X), fake_quantize(factor * X, factor * 3.0))
    assert quantizer.amax is None


def test_axis_keeps_range_for_each_channel() -> None:
    found = made(axis=1)(X * torch.arange(1.0, 6.0))
    for channel in range(5):
        alone = made()(X[:, channel] * (channel + 1.0))
        torch.testing.assert_close(found[:, channel], alone, rtol=0, atol=0)


def test_a_descriptor_sets_the_range() -> None:
    quantizer = made(amax=127.0)
    assert quantizer.calibrated
    assert (quantizer.amax.item(), quantizer.scale.item(), quantizer.step_size.item()) == (
        127,
        1,
        1,
    )
    assert quantizer(torch.tensor([-500.0, 0.5, 1.5, 500.0])).tolist() == [-128, 0, 2, 127]


def test_flat_list_of_ranges_lies_along_axis() -> None:
    quantizer = made(axis=0, amax=[1.0, 2.0])
    x = torch.full((2, 2), 9.0)
    assert quantizer(x).tolist() == [[1, 1], [2, 2]]
    assert quantizer.amax.shape == (2, 1)


def test_scale_amax_multiplies_ranges_of_tensors() -> None:
    assert made(amax=4.0, scale_amax=0.5).amax.item() == 2.0
    quantizer = made(scale_amax=0.5)
    torch.testing.assert_close(quantizer(X), fake_quantize(X, 1.5))
    quantizer.enable_calib()
    quantizer(X)
    quantizer.load_calib_amax()
    assert quantizer.amax.item() == 1.5


def test_fake_quant_false_gives_integers() -> None:
    found = made(fake_quant=False, amax=1.27)(torch.tensor([-2.0, 0.503, 1.0]))
    assert found.tolist() == [-128, 50, 100]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), [1.0, -2.0]])
def test_amax_refuses_bad_values(bad: Any) -> None:
    quantizer = made(axis=0, name="q")
    with pytest.raises(SpecError, match=r"finite and not negative. Received for 'q'"):
        quantizer.amax = bad


def test_amax_keeps_its_shape_and_floor() -> None:
    quantizer = made(name="q", axis=0, amax=[[1.0], [2.0]])
    quantizer.amax = 0.0
    assert quantizer.amax.tolist() == [[np.float32(AMAX_FLOOR)]] * 2
    with pytest.raises(SpecError, match=r"'q' has the shape \(2, 1\). Received: \(3,\)"):
        quantizer.amax = [1.0, 2.0, 3.0]
    with pytest.raises(SpecError, match=r"has the shape \(\). Received: \(2,\)"):
        made(learn_amax=True, amax=1.0).amax = [1.0, 2.0]


@pytest.mark.parametrize(
    ("amax", "axis"), [([1.0] * 4 + [2.0], 1), (torch.arange(1.0, 6.0).reshape(5, 1), 0)]
)
def test_array_for_one_range_sets_the_axis(amax: Any, axis: int) -> None:
    quantizer, twin = made(amax=1.5), made(axis=axis)
    quantizer.amax = twin.amax = amax
    torch.testing.assert_close(quantizer(X), twin(X), rtol=0, atol=0)
    restored = made()
    restored.load_state_dict(quantizer.state_dict())
    torch.testing.assert_close(restored(X), twin(X), rtol=0, atol=0)


def test_fp8_rounds_to_scaled_e4m3() -> None:
    quantizer = made(num_bits=(4, 3), amax=2.0, name="q")
    torch.testing.assert_close(quantizer(X), scaled_e4m3(X, 2.0), rtol=0, atol=0)
    assert quantizer.scale.item() == np.float32(2) / 448
    assert "(FP8 fake" in repr(quantizer)
    per_row = made(num_bits=(4, 3), axis=0)
    torch.testing.assert_close(per_row(X)[1], scaled_e4m3(X[1], X[1].abs().max()), rtol=0, atol=0)


def test_pre_quant_scale_multiplies_the_tensor() -> None:
    quantizer, plain = made(amax=127.0, axis=1), made(amax=127.0, axis=1)
    x = torch.tensor([[0.0, 0.4, 1.1, 2.0]])
    assert quantizer.pre_quant_scale is None
    quantizer.pre_quant_scale = 2.0
    assert quantizer(x).tolist() == [[0, 1, 2, 4]]
    quantizer.pre_quant_scale = [[1.0, 2.0, 3.0, 4.0]]
    assert quantizer(x).tolist() == [[0, 1, 3, 8]]
    plain.load_state_dict(quantizer.state_dict())
    assert plain(x).tolist() == [[0, 1, 3, 8]]
    assert plain.half().pre_quant_scale.dtype == torch.float32
    quantizer.disable()
    torch.testing.assert_close(quantizer(x), x * torch.arange(1.0, 5.0))
    quantizer.pre_quant_scale = None
    assert quantizer(x) is x


def test_pre_quant_scale_refuses_weights_and_infinity() -> None:
    quantizer = made(name="q")
    with pytest.raises(SpecError, match=r"must be finite\. Received: inf"):
        quantizer.pre_quant_scale = float("inf")
    quantizer.bind_weight(Owner())
    with pytest.raises(SpecError, match="'q' quantizes a weight: multiply the weight"):
        quantizer.pre_quant_scale = 2.0


def test_if_clip_trains_range_before_quantization() -> None:
    descriptor = QuantDescriptor(learn_amax=True, amax=2.0)
    quantizer = TensorQuantizer(descriptor, if_quant=False, if_clip=True)
    clipped = quantizer(X)
    torch.testing.assert_close(clipped, X.clamp(-2, 2))
    clipped.abs().sum().backward()
    (step,) = quantizer.parameters()
    assert step.grad.item() == pytest.approx(127 * int((X.abs() >= 2).sum()))
    assert (quantizer.clip.clip_value_min, quantizer.clip.clip_value_max) == (-2, 2)
    quantizer.init_learn_amax()
    quantizer.disable_clip()
    assert quantizer(X) is X


def test_only_trained_ranges_clip() -> None:
    assert not hasattr(made(amax=1.0), "clip")
    for act in (made().enable_clip, made().init_learn_amax):
        with pytest.raises(SpecError, match=r"range policy 'frozen'"):
            act()


def test_amax_none_forgets_the_range() -> None:
    quantizer = made(amax=1.0)
    quantizer.amax = None
    assert not quantizer.calibrated
    torch.testing.assert_close(quantizer(X), fake_quantize(X, 3.0))


def test_amax_takes_tensors() -> None:
    quantizer = made()
    quantizer.amax = torch.tensor([2.0], requires_grad=True)
    assert quantizer.amax.shape == ()
    assert not quantizer.amax.requires_grad


def test_an_axis_beyond_the_tensor_is_named() -> None:
    with pytest.raises(SpecError, match="'q' keeps a range along axis 2"):
        made(axis=2, name="q")(X)


def test_disable_passes_tensors_unchanged() -> None:
    quantizer = made(amax=1.0)
    quantizer.disable()
    assert quantizer(X) is X
    assert not quantizer.enabled
    quantizer.enable()
    quantizer.disable_quant()
    assert quantizer(X) is X
    assert not quantizer.enabled
    quantizer.enable_quant()
    assert quantizer(X).max() == 1.0


@pytest.mark.parametrize("switch", ["disabled", "if_quant"])
def test_the_constructor_has_the_switches(switch: str) -> None:
    quantizer = TensorQuantizer(**{switch: switch == "disabled"})
    assert not quantizer.enabled
    assert quantizer(X) is X


def test_a_calibrator_collects_while_it_is_on() -> None:
    quantizer = made()
    quantizer.disable_quant()
    quantizer(9 * X)
    quantizer.enable_calib()
    for factor in (1.0, 2.0, 0.5):
        assert quantizer(factor * X).data_ptr() != 0
    quantizer.disable_calib()
    quantizer(9 * X)
    quantizer.load_calib_amax()
    assert (quantizer.amax.item(), quantizer.calibrated, quantizer.enabled) == (6.0, True, False)


def test_load_calib_amax_takes_method_of_histogram() -> None:
    quantizer = TensorQuantizer(QuantDescriptor(calib_method="histogram"), if_calib=True)
    quantizer(torch.cat([torch.ones(9999), torch.tensor([50.0])]))
    quantizer.load_calib_amax("percentile", percentile=99.9)
    assert quantizer.amax.item() < 1.1
    quantizer.load_calib_amax(method="max")
    assert quantizer.amax.item() == 50.0


def test_load_calib_amax_needs_a_tensor() -> None:
    quantizer = made(name="q", amax=2.0)
    with pytest.raises(CalibrationError, match="quantizer 'q' collected no tensor"):
        quantizer.load_calib_amax()
    quantizer.load_calib_amax(strict=False)
    assert quantizer.amax.item() == 2.0


def test_a_collector_sees_the_float_tensor() -> None:
    seen: list[Any] = []

    class Collector:
        def observe(self, quantizer: Any, tensor: Any) -> None:
            seen.append((quantizer, tensor))

    quantizer = made(amax=0.1)
    with collecting(Collector()):
        assert quantizer(X) is X
    assert seen == [(quantizer, X)]


def test_export_marks_tensor_of_enabled_quantizer() -> None:
    quantizer = nn.Sequential(made(amax=1.0, name="conv.input"))
    with export_mode():
        torch.testing.assert_close(quantizer(X), X, rtol=0, atol=0)
        nodes = torch.export.export(quantizer, (X,)).graph.nodes
    marks = [node.args for node in nodes if "qatline" in str(node.target)]
    assert [args[1] for args in marks] == ["conv.input"]
    quantizer[0].disable()
    with export_mode():
        assert quantizer(X) is X


def test_an_empty_tensor_passes() -> None:
    assert made(range_policy="ema").train()(torch.zeros(0, 3)).shape == (0, 3)


def batches() -> list[np.ndarray]:
    generator = np.random.default_rng(5)
    return [generator.normal(0, size, (4, 6)).astype(np.float32) for size in (1, 3, 0.2, 2, 0.1)]


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("policy", ["ema", "last", "frozen", "current"])
def test_training_moves_the_range_as_keras_does(policy: str, unsigned: bool) -> None:
    ours = made(range_policy=policy, unsigned=unsigned, momentum=0.9)
    theirs = qat_lib.TensorQuantizer(range_policy=policy, unsigned=unsigned, momentum=0.9)
    if policy == "frozen":
        theirs.build((4, 6))
        ours.amax = theirs.amax = 2.0
    for x in batches():
        expected = theirs(tf.constant(x), training=True)
        np.testing.assert_array_equal(ours(torch.from_numpy(x)).numpy(), expected.numpy())
        if policy != "current":
            np.testing.assert_array_equal(ours.amax.numpy(), theirs.amax)
    assert ours.calibrated
    assert theirs.calibrated


@pytest.mark.parametrize("policy", ["ema", "last"])
def test_shared_range_falls_slowly_as_in_keras(policy: str) -> None:
    ours, theirs = made(range_policy=policy), qat_lib.TensorQuantizer(range_policy=policy)
    ours.shared = True
    for _ in range(2):  # Keras counts the tensors of a model
        theirs(keras.Input((6,)))
    for x in batches():
        theirs(tf.constant(x), training=True)
        ours(torch.from_numpy(x))
        np.testing.assert_array_equal(ours.amax.numpy(), theirs.amax)


def test_a_range_stays_in_inference_or_frozen() -> None:
    quantizer = made(range_policy="ema")
    quantizer(X)
    for quiet in (quantizer.eval, quantizer.freeze):
        quantizer.train()
        quiet()
        quantizer(10 * X)
        assert quantizer.amax.item() == 3.0
        assert quantizer.frozen == (quiet == quantizer.freeze)
    quantizer.unfreeze()
    quantizer(10 * X)
    assert quantizer.amax.item() > 3.0


def test_non_finite_values_move_no_range() -> None:
    quantizer = made(range_policy="last")
    quantizer(torch.tensor([1.0, float("inf")]))
    assert quantizer.amax is None
    quantizer(torch.tensor([1.0, 2.0]))
    quantizer(torch.tensor([1.0, float("nan")]))
    assert quantizer.amax.item() == 2.0


def test_learned_range_is_trained_as_its_step() -> None:
    quantizer = made(learn_amax=True, amax=1.0)
    assert quantizer.learn_amax is True
    (step,) = quantizer.parameters()
    optimizer = torch.optim.SGD([step], lr=0.1)
    quantizer(3 * X).pow(2).sum().neg().backward()
    optimizer.step()
    assert quantizer.amax.item() > 1.0
    assert quantizer.amax.item() == pytest.approx(step.item() * 127)


def test_a_learned_range_starts_as_keras_s() -> None:
    quantizer = made(learn_amax=True)
    assert (quantizer.amax.item(), quantizer.calibrated) == (pytest.approx(6.0), False)
    channels = made(learn_amax=True, axis=0)
    assert list(channels.parameters()) == []
    channels(X)
    assert channels.amax.shape == (5, 1)


def test_range_moves_to_device_of_its_tensor() -> None:
    quantizer = made(amax=1.0)
    assert quantizer(X.to("meta")).device.type == "meta"
    assert quantizer.amax.device.type == "meta"
    learned = made(amax=1.0, learn_amax=True)
    assert learned(X.to("meta")).device.type == "meta"


def test_fit_weight_sets_the_range_once() -> None:
    owner = Owner()
    quantizer, current = made(axis=0), made(axis=0, range_policy="current")
    for each in (quantizer, current):
        each.bind_weight(owner)
        assert each.amax.flatten().tolist() == [3, 1.75, 0.5, 1.75, 3]
        each.fit_weight()
    owner.weight = 2 * owner.weight
    assert quantizer(owner.weight).max() == 3.0
    assert current(owner.weight).max() == 6.0
    assert current.amax.max() == 6.0


def test_copies_are_of_their_own() -> None:
    quantizer = made(amax=1.0, learn_amax=True)
    other = copy.deepcopy(quantizer)
    other.amax = 5.0
    assert quantizer.amax.item() == pytest.approx(1.0)


def test_repr_says_settings_and_range() -> None:
    assert repr(made()) == "TensorQuantizer(8bit fake per-tensor amax=dynamic frozen quant)"
    assert " amax=2.5000 " in repr(made(amax=2.5))
    text = repr(made(unsigned=True, num_bits=4, axis=0, amax=[1.0, 2.0], range_policy="ema"))
    assert "unsigned 4bit fake axis=0 amax=[1.0000, 2.0000](2) ema quant" in text
    assert repr(TensorQuantizer(disabled=True)) == "TensorQuantizer(disabled)"
