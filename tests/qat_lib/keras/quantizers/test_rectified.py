"""Quantizers behind a ReLU in graphs against the plain path, bit for bit."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from traced_graphs import ops_of

from qat_lib import TensorQuantizer, TensorRTQDQCase, apply_plan, calibrate, plan_quantization
from qat_lib.keras.quantizers import tensor_quantizer
from qat_lib.keras.quantizers.rectified import rectified

RELUS = {"Relu": tf.nn.relu, "Relu6": tf.nn.relu6}


def awkward(amax: float, high: float) -> np.ndarray:
    """Return ties, the ends of the ranges, their neighbours, random and special values."""
    step = np.float32(amax) / np.float32(high)
    near = min(int(high), 300)
    ties = np.arange(-4, 2 * near + 5) * np.float32(0.5) * step
    points = np.concatenate([ties, np.float32([amax, -amax, 6.0])])
    around = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
    rest = np.random.default_rng(0).normal(0, amax, 1000)
    special = [0.0, -0.0, 1e-40, -1e-40, np.inf, -np.inf, np.nan, 3e38]
    return np.concatenate([points, *around, rest, special]).astype(np.float32)


def made(amax: float, **options: Any) -> TensorQuantizer:
    quantizer = TensorQuantizer(**options)
    quantizer(tf.zeros(3))
    quantizer.amax = amax
    return quantizer


def step_of(quantizer: TensorQuantizer, relu: Any, plain: bool, training: bool = True) -> Any:
    """Return a traced function of ``b`` and upstream gradient.

    It returns the value and the gradients to ``b`` and to a learned range.
    """

    @tf.function
    def step(b: Any, upstream: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(b)
            x = relu(b)
            y = quantizer(tf.identity(x) if plain else x, training=training)
        sources = [b, *quantizer.trainable_variables]
        return y, *tape.gradient(y, sources, output_gradients=upstream)

    return step


def ops_of_step(quantizer: TensorQuantizer, relu: Any, training: bool = True) -> set[str]:
    spec = tf.TensorSpec((4, 3))
    return ops_of(step_of(quantizer, relu, plain=False, training=training), spec, spec)


@pytest.mark.matrix_except(
    "True-{}-6.0-Relu", "True-{'unsigned': True}-0.37-Relu6", "False-{'num_bits': 2}-7.5-Relu"
)
@pytest.mark.parametrize("relu", RELUS)
@pytest.mark.parametrize("amax", [0.37, 6.0, 7.5])
@pytest.mark.parametrize("options", [{}, {"unsigned": True}, {"num_bits": 2}], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_rectified_equals_the_plain_path(
    relu: str, amax: float, options: dict[str, Any], training: bool
) -> None:
    quantizer = made(amax, range_policy="frozen", **options)
    b = tf.constant(awkward(amax, quantizer._high))
    upstream = tf.random.stateless_normal(b.shape, [1, 2])
    # Gradients that are not finite meet each kind of value.
    wild = tf.constant(np.resize(np.float32([np.inf, 1.0, np.nan, -np.inf]), b.shape))
    steps = [step_of(quantizer, RELUS[relu], plain, training) for plain in (True, False)]
    for enabled in (True, False):
        (quantizer.enable if enabled else quantizer.disable)()
        for gradient in (upstream, wild):
            (y, db), (same_y, same_db) = (step(b, gradient) for step in steps)
            np.testing.assert_array_equal(same_y, y)
            np.testing.assert_array_equal(same_db, db)


@pytest.mark.matrix_except(
    "{}-float32-6.0-Relu", "{}-float16-0.37-Relu6", "{'unsigned': True}-bfloat16-7.5-Relu"
)
@pytest.mark.parametrize("relu", RELUS)
@pytest.mark.parametrize("amax", [0.37, 6.0, 7.5])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"unsigned": True}], ids=str)
def test_rectified_learns_its_range_alike(
    relu: str, amax: float, dtype: str, options: dict[str, Any]
) -> None:
    quantizer = made(amax, range_policy="learned", **options)
    values = awkward(amax, quantizer._high)
    b = tf.cast(values[~np.isnan(values)], dtype)
    upstream = tf.random.stateless_normal(b.shape, [1, 2])
    wild = tf.constant(np.resize(np.float32([np.inf, 1.0, np.nan, -np.inf]), b.shape))

    steps = [step_of(quantizer, RELUS[relu], plain) for plain in (True, False)]
    for enabled in (True, False):
        (quantizer.enable if enabled else quantizer.disable)()
        for gradient in (upstream, wild):
            plain, found = (step(b, tf.cast(gradient, dtype)) for step in steps)
            for one, other in zip(found, plain, strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(tf.cast(one, tf.float32), tf.cast(other, tf.float32))


@pytest.mark.parametrize("relu", RELUS)
@pytest.mark.parametrize("policy", ["ema", "last"])
@pytest.mark.parametrize("unsigned", [False, True])
def test_rectified_moves_the_range_alike(relu: str, policy: str, unsigned: bool) -> None:
    pair = [made(1.0, range_policy=policy, unsigned=unsigned) for _ in range(2)]
    steps = [step_of(pair[0], RELUS[relu], True), step_of(pair[1], RELUS[relu], False)]
    for factor in (1.0, 3.0, -0.01, 8.0, np.nan):
        b = tf.constant(np.float32([-2.0, 0.3, 1.4, 0.0]) * np.float32(factor))
        (y, db), (same_y, same_db) = (step(b, tf.ones(4)) for step in steps)
        np.testing.assert_array_equal(same_y, y)
        np.testing.assert_array_equal(same_db, db)
        assert pair[0].amax == pair[1].amax


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("relu", RELUS)
def test_rectified_takes_half_precision(dtype: str, relu: str) -> None:
    quantizer = made(1.37, range_policy="frozen")
    b = tf.cast(awkward(1.37, 127.0), dtype)
    upstream = tf.cast(tf.random.stateless_normal(b.shape, [1, 2]), dtype)
    (y, db), (same_y, same_db) = (
        step_of(quantizer, RELUS[relu], plain)(b, upstream) for plain in (True, False)
    )
    assert (same_y.dtype, same_db.dtype) == (b.dtype, b.dtype)
    np.testing.assert_array_equal(tf.cast(same_y, tf.float32), tf.cast(y, tf.float32))
    np.testing.assert_array_equal(tf.cast(same_db, tf.float32), tf.cast(db, tf.float32))


def test_rectified_leaves_other_consumers_their_gradient() -> None:
    quantizers = [made(amax, range_policy="frozen") for amax in (0.8, 2.5)]

    def gradient(plain: bool) -> Any:
        @tf.function
        def step(b: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(b)
                x = tf.nn.relu(b)
                seen = tf.identity(x) if plain else x
                one, two = (quantizer(seen, training=True) for quantizer in quantizers)
                loss = tf.reduce_sum(one * 2.0 + two * two + x * x)
            return tape.gradient(loss, b)

        return step(tf.constant([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0]))

    found = gradient(plain=False).numpy()
    np.testing.assert_array_equal(found, gradient(plain=True))
    assert found[0] == 0.0
    assert found[5] == 6.0  # only the square's gradient is left beyond both ranges


@pytest.mark.parametrize(("training", "flows"), [(True, False), (False, True)])
def test_rectified_passes_no_gradient_to_the_output_itself(training: bool, flows: bool) -> None:
    quantizer, found = made(1.0, range_policy="frozen"), []

    @tf.function
    def step(b: Any) -> None:
        with tf.GradientTape() as tape:
            x = tf.nn.relu(b)
            tape.watch(x)
            y = quantizer(x, training=training)
        found.append(tape.gradient(y, x) is not None)

    step(tf.constant([0.5, 2.0]))
    assert found == [flows]


@pytest.mark.parametrize("relu", RELUS)
def test_rectified_keeps_one_byte_an_element(relu: str) -> None:
    quantizer, spec = made(1.0, range_policy="frozen"), tf.TensorSpec((64, 3))
    assert not ops_of_step(quantizer, RELUS[relu]) & {"ReluGrad", "Relu6Grad"}
    graph = step_of(quantizer, RELUS[relu], plain=False).get_concrete_function(spec, spec).graph
    forward, backward = (op for op in graph.get_operations() if op.type == "PartitionedCall")
    functions = {each.signature.name: each for each in graph.as_graph_def().library.function}
    function = functions[backward.get_attr("f").name]
    taken = {
        argument.name: value
        for argument, value in zip(function.signature.input_arg, backward.inputs, strict=True)
    }
    read = {name for name in read_by(function, function.ret.values()) if name in taken}
    upstream = next(name for name in read if taken[name] is graph.inputs[1])
    # Arguments that nothing reads are gone once the function is inlined.
    assert [taken[name].dtype for name in read - {upstream}] == [tf.bool]
    assert {taken[name].op for name in read - {upstream}} == {forward}
    # It waits for the gradient: the forward pass leaves the mask alone.
    [factors] = [node for node in function.node_def if node.op == "Cast"]
    waits_for = read_by(function, [each for each in factors.input if each.startswith("^")])
    assert upstream in waits_for


def read_by(function: Any, outputs: Any) -> set[str]:
    """Return the names of the nodes and arguments from which a function gets its outputs."""
    nodes = {node.name: node for node in function.node_def}
    found: set[str] = set()
    names = list(outputs)
    while names:
        name = names.pop().lstrip("^").split(":")[0]
        if name not in found:
            found.add(name)
            names += nodes[name].input if name in nodes else []
    return found


@pytest.mark.parametrize(
    ("options", "training"),
    [
        ({"range_policy": "learned"}, False),
        ({"range_policy": "learned", "channel_axes": (-1,)}, True),
        ({"range_policy": "frozen", "channel_axes": (-1,)}, True),
        ({"range_policy": "frozen"}, False),
    ],
)
def test_other_quantizers_take_the_plain_path(options: dict[str, Any], training: bool) -> None:
    quantizer = TensorQuantizer(**options)
    quantizer(tf.zeros((4, 3)))
    assert "ReluGrad" in ops_of_step(quantizer, tf.nn.relu, training)


def test_rectified_needs_a_graph_without_xla() -> None:
    found = []

    def look(b: Any) -> Any:
        found.append(rectified(tf.nn.relu(b)) is not None)
        found.append(rectified(tf.nn.elu(b)) is not None)
        return b

    b = tf.constant([1.0])
    assert rectified(tf.nn.relu(b)) is None
    tf.function(look)(b)
    tf.function(look, jit_compile=True)(b)
    assert found == [True, False, False, False]


def network(dtype: str) -> keras.Model:
    """Return a quantized network with a ReLU, a ReLU6 and a residual sum behind a ReLU."""
    keras.utils.set_random_seed(4)
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(8, 3, use_bias=False, name="conv", dtype=dtype)(image)
    x = layers.ReLU(name="relu", dtype=dtype)(layers.BatchNormalization(name="bn", dtype=dtype)(x))
    y = layers.Conv2D(8, 3, padding="same", name="second", dtype=dtype)(x)
    y = layers.ReLU(6.0, name="relu6", dtype=dtype)(y)
    x = layers.Add(name="add", dtype=dtype)([x, y])
    x = layers.ReLU(name="last", dtype=dtype)(x)
    x = layers.Flatten(name="flat", dtype=dtype)(layers.Conv2D(4, 3, name="third", dtype=dtype)(x))
    model = keras.Model(image, layers.Dense(4, name="logits", dtype="float32")(x))
    plan = plan_quantization(model, "full", None, [TensorRTQDQCase()])
    return apply_plan(model, plan.with_range_policy("frozen"))


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(6)
    return generator.random((16, 8, 8, 3), np.float32), np.arange(16) % 4


def fitted(dtype: str, steps: int | None) -> list[np.ndarray]:
    x, y = data()
    model = network(dtype)
    calibrate(model, x, "max")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps)
    model.compile(optimizer, loss, jit_compile=False)
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return [weight.numpy() for weight in model.trainable_weights]


@pytest.mark.parametrize(
    ("dtype", "steps"),
    [
        ("float32", None),
        pytest.param("float32", 2, marks=pytest.mark.slow),
        pytest.param("mixed_bfloat16", None, marks=pytest.mark.slow),
    ],
)
def test_fit_gives_the_weights_of_the_plain_path(
    dtype: str, steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fitted(dtype, steps)
    monkeypatch.setattr(tensor_quantizer, "rectified", lambda _: None)
    for one, other in zip(found, fitted(dtype, steps), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_recomputed_rectified_gives_the_same_gradients() -> None:
    x, y = data()
    model = network("float32")
    calibrate(model, x, "max")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def gradients(recompute: bool) -> Any:
        @tf.function
        def step() -> Any:
            run = lambda images: model(images, training=True)  # noqa: E731
            call = tf.recompute_grad(run) if recompute else run
            with tf.GradientTape() as tape:
                value = loss(y, call(tf.constant(x)))
            return tape.gradient(value, [v.value for v in model.trainable_variables])

        return step()

    for one, other in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
