"""TensorQuantizer as a layer to put on any tensor by hand."""

import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import quantization_oracle as oracle
import tensorflow as tf
from keras import layers

from qat_lib import TensorQuantizer, fake_quantize, load_model, model_quantizers
from qat_lib.errors import SpecError
from qat_lib.keras.quantizers import collecting, export_mode


def line(count: int = 33) -> np.ndarray:
    return np.linspace(-3, 3, count, dtype=np.float32)[None]


def test_quantizers_by_pattern() -> None:
    x = keras.Input((4,))
    model = keras.Model(
        x, [TensorQuantizer(name=name)(x) for name in ("a_quantizer", "b_quantizer", "b_other")]
    )
    assert set(model_quantizers(model, "b_.*")) == {"b_quantizer", "b_other"}
    assert set(model_quantizers(model, ".*_quantizer")) == {"a_quantizer", "b_quantizer"}
    assert model_quantizers(model, "b") == {}
    assert model_quantizers(keras.Model(x, layers.Dense(1)(x))) == {}


def test_off_it_passes_bits_on() -> None:
    quantizer = TensorQuantizer()
    x = tf.constant([np.nan, np.inf, -0.0, 1e-40, 1.0])
    quantizer(x)
    quantizer.disable()
    assert quantizer(x).numpy().tobytes() == x.numpy().tobytes()
    assert not quantizer.enabled
    quantizer.enable()
    assert quantizer(tf.constant([1.0])).numpy() != 1.0


def test_the_range_can_be_read_and_set() -> None:
    quantizer = TensorQuantizer(channel_axes=(-1,))
    quantizer.build((None, 3))
    assert quantizer.amax.tolist() == [[6, 6, 6]]
    assert not quantizer.calibrated
    quantizer.amax = [[1.0, 2.0, 0.0]]
    assert quantizer.calibrated
    assert quantizer.amax.dtype == np.float32
    np.testing.assert_array_equal(quantizer.amax, np.float32([[1, 2, oracle.AMAX_FLOOR]]))
    np.testing.assert_array_equal(quantizer.scale, oracle.scale(np.float32([[1, 2, 0]])))
    quantizer.amax = 3.0
    assert quantizer.amax.tolist() == [[3, 3, 3]]


def test_unsigned_quantizer_measures_only_what_it_keeps(tmp_path: Path) -> None:
    x = keras.Input((33,), name="x")
    model = keras.Model(x, TensorQuantizer(name="q", unsigned=True, range_policy="last")(x))
    model(line() - 2, training=True)
    (quantizer,) = model_quantizers(model).values()
    assert float(quantizer.amax) == 1.0  # of -5 to 1
    assert quantizer.scale == np.float32(1) / np.float32(255)
    model.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras")
    assert model_quantizers(loaded)["q"].unsigned
    np.testing.assert_array_equal(loaded(line()), oracle.fake_quantize(line(), 1.0, unsigned=True))


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, [1.0, -2.0, 1.0]])
def test_a_range_that_is_none_is_refused(value: Any) -> None:
    quantizer = TensorQuantizer(name="q", channel_axes=(-1,))
    quantizer.build((None, 3))
    with pytest.raises(SpecError, match=r"finite and not negative\. Received for 'q'"):
        quantizer.amax = value
    assert quantizer.amax.tolist() == [[6, 6, 6]]


def test_a_range_of_another_shape_is_refused() -> None:
    quantizer = TensorQuantizer(name="q", channel_axes=(-1,))
    quantizer.build((None, 3))
    with pytest.raises(SpecError, match=r"shape \(1, 3\)"):
        quantizer.amax = [1.0, 2.0]


@pytest.mark.parametrize("use", ["amax", "enabled", "scale", "calibrated"])
def test_unbuilt_quantizer_says_so(use: str) -> None:
    with pytest.raises(SpecError, match="'q' is not built"):
        getattr(TensorQuantizer(name="q"), use)
    with pytest.raises(SpecError, match="'q' is not built"):
        TensorQuantizer(name="q").disable()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"range_policy": "median"}, "range_policy must be one of"),
        ({"num_bits": 1}, "from 2 to 16"),
        ({"num_bits": 17}, "from 2 to 16"),
        ({"num_bits": 8.0}, "from 2 to 16"),
        ({"num_bits": True}, "from 2 to 16"),
        ({"narrow_range": True, "unsigned": True}, "not both"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": -0.1}, "momentum"),
        ({"momentum": float("nan")}, "momentum"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TensorQuantizer(**arguments)


@pytest.mark.parametrize("axes", [(2,), (-3,), (0, 5)])
def test_axis_that_tensor_lacks_is_refused(axes: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="axis"):
        TensorQuantizer(channel_axes=axes).build((4, 3))


def test_range_for_each_unknown_size_is_refused() -> None:
    with pytest.raises(SpecError, match="unknown"):
        TensorQuantizer(channel_axes=(0,)).build((None, 3))


def test_the_config_round_trips() -> None:
    quantizer = TensorQuantizer(
        name="q",
        num_bits=4,
        narrow_range=True,
        channel_axes=(0, -1),
        range_policy="learned",
        momentum=0.5,
        calibrator="mse",
    )
    copy = TensorQuantizer.from_config(quantizer.get_config())
    assert copy.get_config() == quantizer.get_config()
    assert copy.channel_axes == (0, -1)


def test_the_momentum() -> None:
    quantizer = TensorQuantizer(momentum=0.5)
    for value in (4.0, 2.0, 8.0):
        quantizer(tf.constant([value]), training=True)
    assert float(quantizer.amax) == (4 * 0.5 + 2 * 0.5) * 0.5 + 8 * 0.5


def test_contexts_stay_in_block_and_thread() -> None:
    quantizer = TensorQuantizer(name="q")
    x = tf.constant([0.33])
    expected = quantizer(x).numpy()

    class Collector:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def observe(self, quantizer: Any, tensor: Any) -> None:
            self.seen.append(quantizer.name)

    collector, elsewhere = Collector(), []
    with collecting(collector):
        assert quantizer(x).numpy() == x.numpy()
        thread = threading.Thread(target=lambda: elsewhere.append(quantizer(x).numpy()))
        thread.start()
        thread.join()
    assert collector.seen == ["q"]
    assert elsewhere == [expected]
    with pytest.raises(RuntimeError, match="stop"), export_mode():
        raise RuntimeError("stop")
    assert quantizer(x).numpy() == expected


def test_the_op_and_the_layer_agree() -> None:
    quantizer = TensorQuantizer(num_bits=5)
    quantizer.build((None, 33))
    quantizer.amax = 1.1
    np.testing.assert_array_equal(quantizer(line()), fake_quantize(line(), 1.1, num_bits=5))


def test_shared_range_falls_32_times_slower() -> None:
    inputs = [keras.Input((4,), name=name) for name in "ab"]
    tied = TensorQuantizer(name="tied", range_policy="ema", momentum=0.5)
    model = keras.Model(inputs, [tied(x) for x in inputs])
    tied.amax = 10.0
    small = np.full((1, 4), 4.0, np.float32)
    model([small, small], training=True)
    slow = 1 - (1 - 0.5) / 32
    assert float(tied.amax) == pytest.approx(4 + 6 * slow**2, rel=1e-6)
    tied.amax = 2.0
    model([small, small], training=True)
    assert float(tied.amax) == pytest.approx(4 - 2 * 0.5**2, rel=1e-6)


def built(**options: Any) -> TensorQuantizer:
    quantizer = TensorQuantizer(name="q", **options)
    quantizer.build((None, 3))
    return quantizer


def test_defaults_are_signed_8_bits_moving_average() -> None:
    quantizer = built()
    found = {
        name: quantizer.get_config()[name]
        for name in ("num_bits", "narrow_range", "unsigned", "momentum")
    }
    assert found == {"num_bits": 8, "narrow_range": False, "unsigned": False, "momentum": 0.95}
    assert (quantizer.channel_axes, quantizer.range_policy, quantizer.calibrator) == (
        None,
        "ema",
        None,
    )
    assert quantizer.get_config()["channel_axes"] is None
    assert (quantizer.enabled, quantizer.frozen, quantizer.calibrated) == (True, False, False)
    assert float(quantizer.amax) == 6.0
    assert quantizer.scale == np.float32(6) / np.float32(127)


@pytest.mark.parametrize("bits", [2, 16])
@pytest.mark.parametrize("momentum", [0.0, 0.999])
def test_arguments_at_their_bounds_are_taken(bits: int, momentum: float) -> None:
    quantizer = TensorQuantizer(num_bits=bits, momentum=momentum)
    assert (quantizer.num_bits, quantizer.momentum) == (bits, momentum)


@pytest.mark.parametrize("policy", ["frozen", "ema", "last", "learned", "current"])
def test_only_a_learned_range_is_trained(policy: str) -> None:
    quantizer = built(range_policy=policy)
    names = [weight.name for weight in quantizer.trainable_weights]
    assert names == (["step"] if policy == "learned" else [])
    assert {weight.name for weight in quantizer.weights} == {
        "step" if policy == "learned" else "amax",
        "flags",
    }
    assert quantizer.frozen is (policy == "frozen")
    assert quantizer.calibrated is (policy == "current")
    quantizer.freeze()
    assert quantizer.frozen
    quantizer.unfreeze()
    assert quantizer.frozen is (policy == "frozen")


@pytest.mark.parametrize("policy", ["frozen", "learned", "current"])
@pytest.mark.parametrize("training", [False, True])
def test_only_moving_ranges_follow_the_data(policy: str, training: bool) -> None:
    quantizer = built(range_policy=policy)
    quantizer(tf.constant([[1.0, 2.0, 3.0]]), training=training)
    assert float(quantizer.amax) == 6.0
    assert quantizer._is_on(2) is False


@pytest.mark.parametrize("policy", ["ema", "last"])
def test_range_follows_only_enabled_unfrozen_in_training(policy: str) -> None:
    quantizer, x = built(range_policy=policy), tf.constant([[1.0, 2.0, 3.0]])
    quantizer(x)
    quantizer(x, training=False)
    quantizer.freeze()
    quantizer(x, training=True)
    quantizer.unfreeze()
    quantizer.disable()
    quantizer(x, training=True)
    assert (float(quantizer.amax), quantizer.calibrated) == (6.0, False)
    quantizer.enable()
    quantizer(x, training=True)
    assert (float(quantizer.amax), quantizer.calibrated) == (3.0, True)
    assert (quantizer.enabled, quantizer.frozen) == (True, False)
    quantizer(2 * x, training=True)
    assert float(quantizer.amax) == pytest.approx(6.0 if policy == "last" else 0.95 * 3 + 0.05 * 6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_batch_moves_nothing(bad: float) -> None:
    quantizer = built()
    quantizer(tf.constant([[1.0, bad, 3.0]]), training=True)
    assert (float(quantizer.amax), quantizer.calibrated) == (6.0, False)


def test_range_of_channels_follows_each_of_them() -> None:
    quantizer = built(channel_axes=(-1,), range_policy="last")
    quantizer(tf.constant([[1.0, -2.0, 0.0], [0.5, 1.0, 0.0]]), training=True)
    np.testing.assert_array_equal(quantizer.amax, np.float32([[1, 2, oracle.AMAX_FLOOR]]))


@pytest.mark.parametrize(
    ("axes", "shape"), [(None, ()), ((-1,), (1, 1, 3)), ((0,), (2, 1, 1)), ((1, 2), (1, 4, 3))]
)
def test_range_of_tensor_broadcasts_against_it(
    axes: tuple[int, ...] | None, shape: tuple[int, ...]
) -> None:
    x = np.arange(-12, 12, dtype=np.float32).reshape(2, 4, 3)
    found = TensorQuantizer(channel_axes=axes).range_of(tf.constant(x))
    assert found.shape == shape
    np.testing.assert_array_equal(found, oracle.range_of(x, axes))


def test_range_accepts_zero_and_small_values() -> None:
    quantizer = built()
    quantizer.amax = 0.5
    assert float(quantizer.amax) == 0.5
    quantizer.amax = 0.0
    assert float(quantizer.amax) == oracle.AMAX_FLOOR
    assert quantizer.calibrated


@pytest.mark.parametrize("bits", [2, 8])
@pytest.mark.parametrize("value", [0.0, 1e-9, 0.3, 5.0])
def test_learned_range_is_kept_as_its_step(bits: int, value: float) -> None:
    quantizer = built(range_policy="learned", num_bits=bits)
    high = 2 ** (bits - 1) - 1
    assert float(quantizer.amax) == pytest.approx(6.0)
    quantizer.amax = value
    assert float(quantizer.amax) == pytest.approx(max(value, oracle.AMAX_FLOOR), rel=1e-6)
    assert float(quantizer.amax) >= np.float32(oracle.AMAX_FLOOR)
    assert float(quantizer._range.numpy()) * high == pytest.approx(float(quantizer.amax), rel=1e-6)
    y = quantizer(tf.constant([[value, 0.0, -value]])).numpy()
    np.testing.assert_allclose(y[0, 0], value, rtol=1e-5, atol=oracle.AMAX_FLOOR)


def test_weight_quantizer_returns_to_its_range() -> None:
    variable = keras.Variable(np.float32([[1, -4, 2]]))
    for policy, fitted in (("frozen", 4.0), ("learned", 4.0), ("current", 4.0)):
        quantizer = TensorQuantizer(range_policy=policy)
        assert not quantizer.of_weight
        quantizer.bind_weight(variable)
        quantizer.build((1, 3))
        assert quantizer.of_weight
        assert quantizer.calibrated
        assert float(quantizer.amax) == pytest.approx(fitted)
        if policy != "current":
            quantizer.amax = 1.0
            assert float(quantizer.amax) == pytest.approx(1.0)
        quantizer.fit_weight()
        assert float(quantizer.amax) == pytest.approx(fitted)
    variable.assign(np.float32([[1, -5, 2]]))
    assert float(quantizer.amax) == 5.0


@pytest.mark.parametrize(
    "policies", [("ema", "last"), ("ema", "learned"), ("learned", "ema"), ("learned", "learned")]
)
def test_take_over_brings_range_and_switches(policies: tuple[str, str]) -> None:
    mine, other = (built(range_policy=policy) for policy in policies)
    other.amax = 1.5
    other.freeze()
    other.disable()
    mine.take_over(other)
    assert float(mine.amax) == pytest.approx(1.5, rel=1e-6)
    assert (mine._is_on(1), mine.enabled, mine.calibrated) == (False, False, True)


@pytest.mark.parametrize(
    "policies", [("ema", "last"), ("ema", "learned"), ("learned", "ema"), ("learned", "learned")]
)
def test_saved_range_is_loaded_under_any_policy(policies: tuple[str, str]) -> None:
    mine, other = (built(range_policy=policy) for policy in policies)
    other.amax = 1.5
    other.disable()
    store: dict[str, Any] = {}
    other.save_own_variables(store)
    assert ("step" in store) is (policies[1] == "learned")
    mine.load_own_variables({name: np.asarray(value) for name, value in store.items()})
    assert float(mine.amax) == pytest.approx(1.5, rel=1e-6)
    assert (mine.enabled, mine.calibrated) == (False, True)
    if policies == ("learned", "learned"):
        np.testing.assert_array_equal(mine._range.numpy(), other._range.numpy())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_calls_keep_the_data_type(dtype: str) -> None:
    assert TensorQuantizer()(tf.constant([[1.0, 2.0]], dtype)).dtype == dtype


def test_symbolic_calls_keep_shape_and_type() -> None:
    x = keras.Input((3,), dtype="float16")
    y = TensorQuantizer()(x)
    assert (y.shape, y.dtype) == (x.shape, "float16")
    assert TensorQuantizer().compute_output_shape((None, 3)) == (None, 3)


def test_on_any_tensor_by_hand(tmp_path: Path) -> None:
    x = keras.Input((33,), name="x")
    y = TensorQuantizer(name="mine")(layers.Dense(4, name="dense")(x))
    model = keras.Model(x, y)
    (quantizer,) = model_quantizers(model).values()
    quantizer.amax = 1.25
    hidden = keras.Model(x, model.get_layer("dense").output)
    np.testing.assert_array_equal(model(line()), oracle.fake_quantize(hidden(line()).numpy(), 1.25))
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(load_model(tmp_path / "model.keras")(line()), model(line()))


@pytest.mark.parametrize(("policy", "least"), [("last", 10.0), ("ema", 9.0)])
def test_one_layer_on_several_tensors_covers_widest(policy: str, least: float) -> None:
    inputs = [keras.Input((4,), name=name) for name in "abc"]
    tied = TensorQuantizer(name="tied", range_policy=policy, momentum=0.5)
    model = keras.Model(inputs, [tied(x) for x in inputs])
    step = tf.function(lambda *x: model(list(x), training=True))
    for _ in range(20):
        step(tf.ones((1, 4)), tf.fill((1, 4), 10.0), tf.fill((1, 4), 2.0))
    assert list(model_quantizers(model)) == ["tied"]
    assert least * 0.95 < float(tied.amax) <= 10.0
    for _ in range(250):  # and it does come down when all of them do
        step(tf.ones((1, 4)), tf.ones((1, 4)), tf.ones((1, 4)))
    assert float(tied.amax) == pytest.approx(1.0, abs=0.2)


def test_masks_pass_through() -> None:
    x = keras.Input((None,), dtype="int32")
    embedded = layers.Embedding(4, 3, mask_zero=True)(x)
    model = keras.Model(x, layers.LSTM(2)(TensorQuantizer()(embedded)))
    masked, padded = np.int32([[1, 2, 0, 0, 0]]), np.int32([[1, 2]])
    np.testing.assert_allclose(model(masked), model(padded), atol=1e-6)
