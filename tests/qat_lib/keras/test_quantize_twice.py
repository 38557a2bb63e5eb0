"""Models with quantizers already: still one for each tensor.

They are from an earlier call or put there by hand.
"""

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
from keras import layers

from qat_lib import (
    Conv2DQuantizeWrapper,
    LayerGraph,
    QuantizationSpec,
    ResNetV1QDQCase,
    ResNetV2QDQCase,
    TensorQuantizer,
    TensorRTQDQCase,
    calibrate,
    export_onnx,
    load_model,
    model_quantizers,
    plan_quantization,
    quantize_model,
)
from qat_lib.keras.graph.layer_traits import is_identity
from qat_lib.keras.wrappers import BaseQuantizeWrapper


def conv(x: Any, name: str, **options: Any) -> Any:
    return layers.Conv2D(4, 3, padding="same", name=name, **options)(x)


def net() -> keras.Model:
    """A network of the structures that share or contain quantizers.

    A residual block, a pool between readers of one tensor, a Concatenate, a separable convolution
    and a head.
    """
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3), name="x")
    a = layers.ReLU(name="relu")(conv(x, "conv_a"))
    b = layers.BatchNormalization(name="bn")(conv(a, "conv_b"))
    c = layers.ReLU(name="relu_c")(layers.Add(name="add")([b, a]))
    d = conv(c, "conv_d")
    e = conv(layers.MaxPooling2D(3, 1, padding="same", name="max")(c), "conv_e")
    f = layers.Concatenate(name="cat")([d, e, c])
    g = layers.SeparableConv2D(4, 3, name="sep")(f)
    h = layers.GlobalAveragePooling2D(name="pool")(conv(f, "conv_g"))
    h = layers.Add(name="sum")([h, layers.GlobalAveragePooling2D(name="pool2")(g)])
    return keras.Model(x, layers.Dense(2, name="head")(h), name="net")


def data(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((4, 8, 8, 3)).astype(np.float32)


def source(graph: LayerGraph, tensor: str) -> str:
    call = graph.producer(tensor)
    while len(call.inputs) == 1 and is_identity(call.core):
        tensor = call.inputs[0]
        call = graph.producer(tensor)
    return tensor


def check_one_quantizer_each(model: keras.Model) -> None:
    """Check for single quantizers and wrappers.

    No tensor has two quantizers, none is quantized twice in a row, no layer is wrapped twice.
    """
    graph = LayerGraph(model)
    on: dict[str, set[str]] = {}
    for call in graph.calls:
        if isinstance(call.operation, TensorQuantizer):
            on.setdefault(source(graph, call.inputs[0]), set()).add(call.name)
            assert not isinstance(
                graph.producer(source(graph, call.inputs[0])).operation, TensorQuantizer
            )
        if isinstance(call.operation, BaseQuantizeWrapper):
            assert not isinstance(call.operation.layer, BaseQuantizeWrapper)
            for index, own in enumerate(call.operation.input_quantizers):
                if own is not None and own.enabled:
                    on.setdefault(source(graph, call.inputs[index]), set()).add(own.name)
    assert {tensor: names for tensor, names in on.items() if len(names) > 1} == {}
    names = [layer.name for layer in model._flatten_layers() if isinstance(layer, TensorQuantizer)]
    assert len(names) == len(set(names))


def structure(model: keras.Model) -> set[tuple[str, str]]:
    """Return (tensor, reader) of every quantized read, whatever the quantizers are called."""
    graph = LayerGraph(model)
    return {
        (
            source(graph, call.inputs[0]).removeprefix("quant_"),
            f"{reader.name.removeprefix('quant_')}[{index}]",
        )
        for call in graph.calls
        if isinstance(call.operation, TensorQuantizer)
        for reader, index in graph.consumers(call.outputs[0])
    }


STEPS: dict[str, Callable[[keras.Model], keras.Model]] = {
    "convolutions": lambda m: quantize_model(
        m, "partial", QuantizationSpec().add("Conv2D", is_keras_class=True)
    ),
    "add": lambda m: quantize_model(
        m, "partial", QuantizationSpec().add("Add", is_keras_class=True)
    ),
    "concatenate": lambda m: quantize_model(m, "partial", QuantizationSpec().add("cat")),
    "max": lambda m: quantize_model(
        m, "partial", QuantizationSpec().add("MaxPool2D", is_keras_class=True)
    ),
    "full": quantize_model,
}


ORDERS = [
    *permutations(STEPS, 2),
    ("convolutions", "add", "concatenate", "max", "full"),
    ("full", "max", "concatenate", "add"),
    ("max", "convolutions", "concatenate"),
    ("full", "full", "full"),
]


@pytest.mark.matrix_except("convolutions-add", "max-full", "full-full-full")
@pytest.mark.parametrize("steps", ORDERS, ids="-".join)
def test_repeated_calls_give_one_quantizer_per_tensor(steps: tuple[str, ...]) -> None:
    model = original = net()
    for step in steps:
        model = STEPS[step](model)
        check_one_quantizer_each(model)
    assert np.all(np.isfinite(model(data())))
    for quantizer in model_quantizers(model).values():
        quantizer.disable()
    np.testing.assert_array_equal(model(data()), original(data()))


def test_stepwise_calls_equal_one_call() -> None:
    every = QuantizationSpec().add("Add", is_keras_class=True).add("cat").add("max")
    at_once = quantize_model(net(), "full", every)
    model = net()
    for step in ("max", "concatenate", "add", "full"):
        model = STEPS[step](model)
    assert structure(model) == structure(at_once)
    wrapped = {layer.name for layer in at_once.layers if isinstance(layer, BaseQuantizeWrapper)}
    assert {
        layer.name for layer in model.layers if isinstance(layer, BaseQuantizeWrapper)
    } == wrapped


CASES = [ResNetV1QDQCase, ResNetV2QDQCase, TensorRTQDQCase]


@pytest.mark.matrix_except("max-ResNetV1QDQCase", "full-TensorRTQDQCase")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("first", ["convolutions", "max", "full"])
def test_case_sees_layers_in_their_wrappers(case: type, first: str) -> None:
    """A wrapped convolution still fuses the addition and normalization behind it."""
    model = quantize_model(STEPS[first](net()), custom_qdq_cases=[case()])
    check_one_quantizer_each(model)
    expected = structure(quantize_model(net(), custom_qdq_cases=[case()]))
    assert structure(model) - structure(STEPS[first](net())) <= expected
    assert "conv_b:0" not in {tensor for tensor, _ in structure(model)}
    if first == "convolutions":
        assert structure(model) == expected


def test_second_call_changes_no_range_or_pair(tmp_path: Path) -> None:
    spec = QuantizationSpec().add("Add", is_keras_class=True)
    first = quantize_model(net())
    calibrate(first, data())
    second = quantize_model(first, quantization_spec=spec)
    ranges = {name: q.amax for name, q in model_quantizers(first).items()}
    found = model_quantizers(second)
    for name, amax in ranges.items():
        np.testing.assert_array_equal(found[name].amax, amax)
        assert found[name].calibrated
    calibrate(second, data())
    second.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(data()), second(data()))
    np.testing.assert_array_equal(
        keras.models.clone_model(second).count_params(), second.count_params()
    )
    report = export_onnx(second, tmp_path / "model.onnx")
    names = {
        node.name
        for node in onnx.load(tmp_path / "model.onnx").graph.node
        if node.op_type == "QuantizeLinear"
    }
    assert len(names) == sum(1 for q in found.values() if q.range_policy != "current"), report
    assert structure(second) >= structure(first)


def test_options_of_the_later_call_win() -> None:
    first = quantize_model(
        net(), "partial", QuantizationSpec().add("conv_b", range_policy="frozen", num_bits=4)
    )
    assert model_quantizers(first)["relu_quantizer"].num_bits == 4
    kept = quantize_model(first, "partial", QuantizationSpec().add("add"))
    assert model_quantizers(kept)["relu_quantizer"].num_bits == 4
    assert model_quantizers(kept)["relu_quantizer"].range_policy == "frozen"
    changed = quantize_model(
        first, "partial", QuantizationSpec().add("add", range_policy="learned", num_bits=8)
    )
    assert model_quantizers(changed)["relu_quantizer"].num_bits == 8
    assert model_quantizers(changed)["relu_quantizer"].range_policy == "learned"


def test_what_is_quantized_already_says_so() -> None:
    first = quantize_model(net())
    plan = plan_quantization(first)
    assert plan.quantizers == ()
    reasons = {skipped.layer: skipped.reason for skipped in plan.skipped}
    assert reasons["quant_conv_a"] == reasons["x_quantizer"] == "quantized already"
    assert reasons["bn"] == "fused"
    named = plan_quantization(first, "partial", QuantizationSpec().add("quant_conv_a"))
    assert named.quantizers == ()
    assert {s.reason for s in named.skipped if s.layer == "quant_conv_a"} == {"quantized already"}


def test_ranges_that_concatenate_ties_become_widest() -> None:
    x = keras.Input((4,), name="x")
    a, b = TensorQuantizer(name="a_quantizer"), TensorQuantizer(name="b_quantizer")
    left, right = layers.Dense(3, name="left")(x), layers.Dense(3, name="right")(x)
    both = layers.Concatenate(name="cat")([left, right])
    model = keras.Model(
        x, [both, layers.Dense(2, name="p")(a(left)), layers.Dense(2, name="q")(b(right))]
    )
    a.amax, b.amax = 2.0, 3.0
    quantized = quantize_model(model, "partial", QuantizationSpec().add("cat"))
    (only,) = model_quantizers(quantized).values()
    assert float(only.amax) == 3.0
    assert only.calibrated
    check_one_quantizer_each(quantized)


def by_hand(reader_first: bool) -> keras.Model:
    """A hand-placed quantizer on a tensor with other readers.

    They stand before or behind it in the model.
    """
    x = keras.Input((8, 8, 3), name="x")
    a = conv(x, "conv_a")
    quantizer = TensorQuantizer(name="mine", num_bits=4, range_policy="frozen", momentum=0.5)
    q = quantizer(layers.Dropout(0.1, name="drop")(a))
    quantizer.amax = 2.5
    quantizer.disable()
    b = conv(a if reader_first else layers.MaxPooling2D(1, name="max")(a), "conv_b")
    soft = layers.Softmax(name="soft")(q)
    return keras.Model(
        x, layers.Dense(2, name="head")(layers.Flatten()(layers.Add(name="add")([b, soft])))
    )


@pytest.mark.parametrize("reader_first", [True, False])
def test_quantizer_put_by_hand_serves_all_readers(reader_first: bool) -> None:
    model = by_hand(reader_first)
    quantized = quantize_model(model)
    check_one_quantizer_each(quantized)
    mine = model_quantizers(quantized)["mine"]
    assert (mine.num_bits, mine.range_policy, mine.momentum, float(mine.amax)) == (
        4,
        "frozen",
        0.5,
        2.5,
    )
    assert not mine.enabled
    assert len(mine._inbound_nodes) == 1
    assert float(model_quantizers(model)["mine"].amax) == 2.5
    assert "conv_a_quantizer" not in model_quantizers(quantized)


def test_wrapper_used_by_hand_reads_shared_quantizer() -> None:
    x = keras.Input((8, 8, 3), name="x")
    wrapper = Conv2DQuantizeWrapper(layers.Conv2D(4, 3, padding="same", name="conv_a"))
    model = keras.Model(x, layers.Add(name="add")([wrapper(x), conv(x, "conv_b")]))
    alone = quantize_model(model, "partial", QuantizationSpec().add("add", quantization_index=[0]))
    assert model_quantizers(alone)["conv_a_input_quantizer"].enabled
    quantized = quantize_model(model)
    check_one_quantizer_each(quantized)
    assert not model_quantizers(quantized)["conv_a_input_quantizer"].enabled
    assert (
        len({float(q.amax) for n, q in model_quantizers(quantized).items() if n == "x_quantizer"})
        == 1
    )


def test_it_still_trains_and_compiles() -> None:
    model = net()
    model.compile("sgd", "mse")
    second = quantize_model(
        quantize_model(model, "partial", QuantizationSpec().add("conv_b")),
        custom_qdq_cases=[TensorRTQDQCase()],
    )
    history = second.fit(data(), np.zeros((4, 2)), verbose=0).history
    assert np.isfinite(history["loss"][0])
