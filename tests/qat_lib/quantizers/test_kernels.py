"""The compiled kernels against the same loops as TensorFlow ops, on tensors large enough to compile."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from qat_lib import TensorQuantizer
from qat_lib.quantizers import kernels

SIZE = 2**15
KINDS = [(-128.0, 127.0), (-127.0, 127.0), (0.0, 255.0), (-8.0, 7.0), (0.0, 65535.0)]


def values(high: float, step: float) -> np.ndarray:
    """Return random values and multiples, ties and their neighbours, zeros, infinities and NaN."""
    rng = np.random.default_rng(0)
    x = rng.normal(0.0, high * step, SIZE).astype(np.float32)
    ties = (np.arange(-600, 600) * np.float32(0.5)) * np.float32(step)
    edges = [ties, np.nextafter(ties, np.float32(9e9)), np.nextafter(ties, np.float32(-9e9))]
    special = np.concatenate([*edges, np.float32([0.0, -0.0, np.inf, -np.inf, np.nan])])
    x[: len(special)] = special
    return x


def assert_same(ours: Any, theirs: Any) -> None:
    for one, other in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
        wide, reference = tf.cast(one, tf.float32), tf.cast(other, tf.float32)
        np.testing.assert_array_equal(wide.numpy(), reference.numpy())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_compiled_kernels_equal_plain_ops_bit_for_bit(
    kind: tuple[float, float], on: bool, dtype: str
) -> None:
    amax = tf.constant(np.float32(0.37))
    bounds, switch = kernels.integers(*kind), tf.constant(on)
    x = tf.cast(values(kind[1], 0.37 / kind[1]), dtype)
    dy = tf.cast(tf.random.stateless_normal([SIZE], [1, 2]), dtype)
    for kernel, more in ((kernels.quantize_values, ()), (kernels.pass_inside, (dy,))):
        arguments = (amax, switch, bounds, *more)
        assert_same(kernels.run_kernel(kernel, x, *arguments), kernel(x, *arguments))
    arguments = (amax, switch, bounds, dy)
    assert_same(kernels.run_kernel(kernels.learn, x, *arguments), kernels.learn(x, *arguments))


def test_compiled_channels_equal_plain_ops_bit_for_bit() -> None:
    x = tf.random.stateless_normal([3, 3, 64, 64], [3, 4])
    arguments = ((0, 1, 2), tf.constant(True), kernels.integers(-127.0, 127.0))
    ours = kernels.run_kernel(kernels.quantize_channels, x, *arguments)
    assert_same(ours, kernels.quantize_channels(x, *arguments))


@pytest.mark.parametrize(
    ("shape", "pays"),
    [
        ((SIZE,), True),
        ((SIZE - 1,), False),
        ((None, 32, 32, 3), True),
        ((None, None, 32, 64), False),
        ((None, 10), False),
        ((16, 64, 32), True),
        ((), False),
        (None, False),
    ],
)
def test_run_kernel_compiles_large_tensors_of_known_size(shape: Any, pays: bool) -> None:
    assert kernels._pays(tf.TensorShape(shape)) is pays


def test_run_kernel_without_xla_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, one = tf.random.stateless_normal([SIZE], [5, 6]), tf.constant(1.0)
    arguments = (one, tf.constant(True), kernels.integers(-128.0, 127.0))
    compiled = kernels.run_kernel(kernels.quantize_values, x, *arguments)

    def refused(_kernel: Any) -> Any:
        raise tf.errors.UnimplementedError(None, None, "no XLA here")

    kernels._xla_works.cache_clear()
    monkeypatch.setattr(kernels, "_compiled", refused)
    assert not kernels._xla_works()
    assert_same(kernels.run_kernel(kernels.quantize_values, x, *arguments), compiled)
    kernels._xla_works.cache_clear()


def test_disabled_quantizer_passes_large_tensors_bit_for_bit() -> None:
    quantizer = TensorQuantizer(range_policy="frozen")
    x = tf.constant(values(127.0, 0.05))
    apply = tf.function(lambda x: quantizer(x))
    changed = apply(x).numpy()
    quantizer.disable()
    np.testing.assert_array_equal(apply(x).numpy().view(np.int32), x.numpy().view(np.int32))
    assert (changed != x.numpy()).any()


def test_quantizers_trace_without_conditions() -> None:
    quantizer = TensorQuantizer(range_policy="frozen")
    quantizer(tf.zeros((SIZE,)))
    traced = tf.function(lambda x: quantizer(x, training=True)).get_concrete_function(
        tf.TensorSpec((SIZE,))
    )
    assert not {op.type for op in traced.graph.get_operations()} & {"If", "StatelessIf"}
