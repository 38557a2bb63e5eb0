"""The fake-quantize op against NumPy and ONNX Runtime, with gradients."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnxruntime
import pytest
import quantization_oracle as oracle
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qat_lib import QuantizationSpec, TensorQuantizer, fake_quantize, quantize_model
from qat_lib.keras.export import export_onnx
from qat_lib.keras.quantizers import AMAX_FLOOR, quantization_scale
from qat_lib.keras.quantizers.fake_quantize import scale_of

FLOATS = st.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False)
RANGES = st.floats(2.0**-30, 2.0**30, width=32)


@settings(max_examples=150, deadline=None)
@given(
    x=hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=3, max_side=5), elements=FLOATS),
    amax=RANGES,
    num_bits=st.integers(2, 16),
    kind=st.sampled_from([{}, {"narrow_range": True}, {"unsigned": True}]),
)
def test_one_range_equals_the_oracle(
    x: np.ndarray, amax: float, num_bits: int, kind: dict[str, bool]
) -> None:
    y = fake_quantize(tf.constant(x), amax, num_bits=num_bits, **kind).numpy()
    np.testing.assert_array_equal(y, oracle.fake_quantize(x, amax, num_bits=num_bits, **kind))


@settings(max_examples=100, deadline=None)
@given(data=st.data(), rank=st.integers(2, 5))
def test_range_for_each_channel_equals_oracle(data: st.DataObject, rank: int) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=rank, max_dims=rank, max_side=4))
    axes = tuple(data.draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=2)))
    x = data.draw(
        hnp.arrays(np.float32, shape, elements=st.floats(-8, 8, width=32, allow_subnormal=False))
    )
    quantizer = TensorQuantizer(channel_axes=axes, range_policy="current", narrow_range=True)
    y = quantizer(tf.constant(x)).numpy()
    np.testing.assert_array_equal(
        y, oracle.fake_quantize(x, oracle.range_of(x, axes), narrow_range=True)
    )
    assert quantizer.range_of(tf.constant(x)).shape == tuple(
        n if i in axes else 1 for i, n in enumerate(shape)
    )


@pytest.mark.matrix_except("2-0", "4--1", "5-2")
@pytest.mark.parametrize(("rank", "axis"), [(r, a) for r in range(2, 6) for a in range(-r, r)])
def test_every_axis_of_every_rank(rank: int, axis: int) -> None:
    x = np.random.default_rng(rank).standard_normal((3, 2, 4, 2, 3)[:rank]).astype(np.float32)
    y = TensorQuantizer(channel_axes=(axis,), range_policy="current", narrow_range=True)(
        tf.constant(x)
    ).numpy()
    np.testing.assert_array_equal(
        y, oracle.fake_quantize(x, oracle.range_of(x, (axis,)), narrow_range=True)
    )
    # Each channel's largest magnitude is on the grid: it is quantized without error.
    peaks = np.abs(x) == oracle.range_of(x, (axis,))
    np.testing.assert_allclose(y[peaks], x[peaks], rtol=2e-7)


def test_ties_round_to_even() -> None:
    scale = 2.0**-4  # a power of two: every tie is exact
    k = np.arange(-140, 140, dtype=np.float32)
    y = fake_quantize(tf.constant((k + 0.5) * scale), 127 * scale).numpy() / scale
    expected = np.clip(np.where(k % 2 == 0, k, k + 1), -128, 127)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("narrow", [False, True])
def test_extremes_saturate_as_quantize_linear_does(narrow: bool) -> None:
    x = np.float32([-1e38, -np.inf, -2.0, -128 / 127, -1.0, 0.0, 1.0, 128 / 127, 2.0, np.inf, 1e38])
    y = fake_quantize(tf.constant(x), 1.0, narrow_range=narrow).numpy()
    low = -127 if narrow else -128
    step = np.float32(1) / np.float32(127)
    np.testing.assert_array_equal(
        np.rint(y / step), [low, low, low, low, -127, 0, 127, 127, 127, 127, 127]
    )
    assert np.all(np.isfinite(y))


def test_unsigned_starts_at_zero_with_finer_steps() -> None:
    scale = 2.0**-5
    k = np.arange(-4, 260, dtype=np.float32)
    y = fake_quantize(tf.constant((k + 0.5) * scale), 255 * scale, unsigned=True).numpy() / scale
    np.testing.assert_array_equal(y, np.clip(np.where(k % 2 == 0, k, k + 1), 0, 255))
    x = tf.constant([-np.inf, -1e38, -1e-9, 0.0, 1.0, np.inf, np.nan])
    y = fake_quantize(x, 1.0, unsigned=True).numpy()
    np.testing.assert_array_equal(y, [0, 0, 0, 0, 1, 1, np.nan])
    assert quantization_scale(1.0, unsigned=True).numpy() == np.float32(1) / np.float32(255)


def test_nan_stays_nan() -> None:
    y = fake_quantize(tf.constant([np.nan, 1.0]), 1.0).numpy()
    assert np.isnan(y[0])
    assert y[1] == 1.0


def test_zero_stays_zero() -> None:
    assert fake_quantize(tf.zeros(3), 1.0).numpy().tolist() == [0, 0, 0]
    for amax in (0.0, -1.0, 1e-30):
        assert quantization_scale(amax).numpy() == np.float32(AMAX_FLOOR) / np.float32(127)
        assert fake_quantize(tf.zeros(3), amax).numpy().tolist() == [0, 0, 0]
    assert np.float16(quantization_scale(0.0).numpy()) > 0


def test_a_dead_channel_stays_finite() -> None:
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    x[:, 1] = 0
    y = TensorQuantizer(channel_axes=(-1,), range_policy="current", narrow_range=True)(
        tf.constant(x)
    ).numpy()
    np.testing.assert_array_equal(y[:, 1], 0)
    np.testing.assert_array_equal(
        y, oracle.fake_quantize(x, oracle.range_of(x, (1,)), narrow_range=True)
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_data_type_is_kept(dtype: str) -> None:
    x = tf.cast(np.linspace(-2, 2, 41), dtype)
    y = fake_quantize(x, 1.5)
    assert y.dtype == x.dtype
    expected = oracle.fake_quantize(tf.cast(x, tf.float32).numpy(), 1.5)
    np.testing.assert_array_equal(y.numpy(), tf.cast(expected, dtype).numpy())


def test_xla_gives_the_same_numbers() -> None:
    x = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32) * 3
    amax = np.abs(np.random.default_rng(2).standard_normal((1, 8))).astype(np.float32)
    expected = oracle.fake_quantize(x, amax)
    for jit_compile in (False, True):
        run = tf.function(lambda x: fake_quantize(x, amax), jit_compile=jit_compile)
        np.testing.assert_array_equal(run(tf.constant(x)).numpy(), expected)


@settings(max_examples=50, deadline=None)
@given(
    x=hnp.arrays(np.float32, (4, 3), elements=st.floats(-4, 4, width=32, allow_subnormal=False)),
    amax=hnp.arrays(
        np.float32, st.sampled_from([(), (1, 3), (4, 1)]), elements=st.floats(0.125, 4, width=32)
    ),
    unsigned=st.booleans(),
)
def test_gradient_is_straight_through_inside_of_range(
    x: np.ndarray, amax: np.ndarray, unsigned: bool
) -> None:
    upstream = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    x, amax = tf.constant(x), tf.constant(amax)
    with tf.GradientTape() as tape:
        tape.watch([x, amax])
        y = fake_quantize(x, amax, unsigned=unsigned) * upstream
    dx, damax = tape.gradient(y, [x, amax])
    low = 0 if unsigned else -amax * np.float32(128 / 127)
    np.testing.assert_array_equal(dx.numpy(), np.where((x <= amax) & (x >= low), upstream, 0))
    assert damax is None


@settings(max_examples=50, deadline=None)
@given(
    x=hnp.arrays(np.float32, (4, 3), elements=st.floats(-4, 4, width=32, allow_subnormal=False)),
    amax=hnp.arrays(
        np.float32, st.sampled_from([(), (1, 3), (4, 1)]), elements=st.floats(0.125, 4, width=32)
    ),
    unsigned=st.booleans(),
)
def test_learned_range_gets_gradient_of_lsq(
    x: np.ndarray, amax: np.ndarray, unsigned: bool
) -> None:
    upstream = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    with tf.GradientTape() as tape:
        source, variable = tf.constant(x), tf.Variable(amax)
        tape.watch(source)
        y = fake_quantize(source, variable, learned=True, unsigned=unsigned) * upstream
    dx, damax = tape.gradient(y, [source, variable])
    low, high = (0, 255) if unsigned else (-128, 127)
    inside = (x <= amax) & (x >= (0 if unsigned else -amax * np.float32(128 / 127)))
    scale = oracle.scale(amax, unsigned=unsigned)
    ratio = x / scale
    integers = np.clip(np.rint(ratio), low, high)
    per_value = np.where(inside, integers - ratio, integers) * upstream
    axes = tuple(i for i in range(2) if amax.ndim == 0 or amax.shape[i] == 1)
    expected = (
        per_value.sum(axis=axes, keepdims=amax.ndim > 0)
        / high
        / np.sqrt(x.size // amax.size * high)
    )
    np.testing.assert_array_equal(dx.numpy(), np.where(inside, upstream, 0))
    np.testing.assert_allclose(damax.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_learned_range_quantizes_like_fixed_one() -> None:
    x = np.random.default_rng(3).standard_normal((50, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        fake_quantize(tf.constant(x), 1.25, learned=True).numpy(), oracle.fake_quantize(x, 1.25)
    )


def reference_session(path: Path) -> onnxruntime.InferenceSession:
    """ONNX Runtime without fusions, some of which compute in lower precision."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("unsigned", [False, True])
def test_onnx_runtime_gives_exactly_the_same_numbers(tmp_path: Path, unsigned: bool) -> None:
    """Ranges of many magnitudes; values around the ties and beyond.

    At, beside and between the ties, and beyond the range.
    """
    generator = np.random.default_rng(4)
    amaxes = [
        *np.exp(generator.uniform(-12, 12, 24)).astype(np.float32),
        np.float32(0),
        np.float32(127 * 2.0**-4),
    ]
    inputs = [keras.Input((600,), name=f"x{i}") for i in range(len(amaxes))]
    quantizers = [
        TensorQuantizer(name=f"q{i}_quantizer", unsigned=unsigned) for i in range(len(amaxes))
    ]
    model = keras.Model(inputs, [q(x) for q, x in zip(quantizers, inputs, strict=True)])
    feeds = []
    for quantizer, amax in zip(quantizers, amaxes, strict=True):
        quantizer.amax = amax
        step = oracle.scale(amax, unsigned=unsigned)
        first = -1 if unsigned else -129
        ties = (np.arange(first, first + 258, dtype=np.float32) + np.float32(0.5)) * step
        near = np.concatenate([ties, np.nextafter(ties, np.float32(np.inf))])
        rest = (
            generator.uniform(-1.2, 1.2, 600 - len(near)).astype(np.float32)
            * np.float32(255 if unsigned else 127)
            * step
        )
        feeds.append(np.concatenate([near, rest])[None])
    export_onnx(model, tmp_path / "model.onnx", target="openvino" if unsigned else "tensorrt")
    session = reference_session(tmp_path / "model.onnx")
    received = session.run(None, {f"x{i}": x for i, x in enumerate(feeds)})
    for x, amax, expected, output in zip(feeds, amaxes, model(feeds), received, strict=True):
        np.testing.assert_array_equal(expected, oracle.fake_quantize(x, amax, unsigned=unsigned))
        np.testing.assert_array_equal(output, expected)


def test_onnx_runtime_gives_exactly_the_same_weights(tmp_path: Path) -> None:
    """A unit matrix through Dense reads out the quantized kernel.

    Sums of one value and zeros are exact.
    """
    kernel = np.random.default_rng(5).standard_normal((16, 5)).astype(np.float32)
    kernel *= np.float32([1, 1e-6, 1e4, 0, 3])
    x = keras.Input((16,), name="x")
    model = keras.Model(x, keras.layers.Dense(5, use_bias=False, name="head")(x))
    model.layers[-1].set_weights([kernel])
    quantized = quantize_model(
        model, quantization_spec=QuantizationSpec().add("head", quantize_input=False)
    )
    expected = oracle.fake_quantize(kernel, oracle.range_of(kernel, (-1,)), narrow_range=True)
    np.testing.assert_array_equal(quantized(np.eye(16, dtype=np.float32)), expected)
    export_onnx(quantized, tmp_path / "model.onnx")
    session = reference_session(tmp_path / "model.onnx")
    np.testing.assert_array_equal(
        session.run(None, {"x": np.eye(16, dtype=np.float32)})[0], expected
    )


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(
    ("kind", "least"), [({}, -128), ({"narrow_range": True}, -127), ({"unsigned": True}, 0)]
)
def test_gradient_passes_as_far_as_integers_reach(
    kind: dict[str, bool], least: int, learned: bool
) -> None:
    step = 2.0**-4
    high = 255 if kind.get("unsigned") else 127
    x = tf.constant([least - 0.25, least, least + 0.25, high - 0.25, high, high + 0.25]) * step
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = fake_quantize(x, high * step, learned=learned, **kind)
    assert tape.gradient(y, x).numpy().tolist() == [0, 1, 1, 1, 1, 0]


RANGES = np.random.default_rng(0).uniform(0.1, 9.0, 2000).astype(np.float32)


@pytest.mark.parametrize("jit_compile", [None, False, True])
@pytest.mark.parametrize("high", [7.0, 127.0, 255.0])
def test_scale_of_rounds_once(high: float, jit_compile: bool | None) -> None:
    def run(amax: Any) -> Any:
        return scale_of(amax, high)

    if jit_compile is not None:
        run = tf.function(run, jit_compile=jit_compile)
    np.testing.assert_array_equal(run(tf.constant(RANGES)), RANGES / np.float32(high))


def test_a_division_by_a_constant_is_not_exact_in_graphs() -> None:
    # The reason for ``scale_of``: where this fails, it is no longer needed.
    divided = tf.function(lambda amax: amax / 255.0)(tf.constant(RANGES))
    assert (divided.numpy() != RANGES / np.float32(255)).any()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"range_policy": "frozen", "unsigned": True},
        {"range_policy": "learned", "unsigned": True},
        {"range_policy": "current", "channel_axes": (-1,), "narrow_range": True},
    ],
    ids=lambda settings: settings["range_policy"],
)
def test_graphs_quantize_as_numpy(
    settings: dict[str, Any], jit_compile: bool, training: bool
) -> None:
    quantizer = TensorQuantizer(**settings)
    random = np.random.default_rng(1)
    x = random.normal(size=(64, 32)).astype(np.float32)
    quantizer(x)
    run = tf.function(lambda x: quantizer(x, training=training), jit_compile=jit_compile)
    high, low = (255.0, 0.0) if quantizer.unsigned else (127.0, -127.0)
    for amax in RANGES[:10]:
        if quantizer.range_policy == "current":
            scale = np.abs(x := x * amax).max(axis=0, keepdims=True) / np.float32(high)
        else:
            quantizer.amax = amax
            scale = quantizer.scale
        expected = np.clip(np.round(x / scale), low, high) * scale
        np.testing.assert_array_equal(run(tf.constant(x)), expected)
