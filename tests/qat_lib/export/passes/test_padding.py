"""Zero padding merged into convolutions or pools; tensors known as non-negative."""

import numpy as np
import pytest
from graph_text import build, check_rewrite, floats, ints

from qat_lib.export.passes import merge_padding
from qat_lib.export.passes.padding import is_non_negative, zero_padding

IMAGE = "(float[1,2,6,7] x) => (float y)"
CONSTANTS = {
    "pads": ints(0, 0, 1, 0, 0, 0, 2, 3),
    "k": floats(3, 2, 4, 5),
    "zero": np.float32(0),
    "one": np.float32(1),
    "minus": np.float32(-1),
    "s": np.float32(0.5),
    "z": np.int8(0),
    "positive": np.float32([[[[0.0]], [[1.0]]]]),
    "mixed": np.float32([[[[1.0]], [[-1.0]]]]),
    "flat": ints(0, -1),
    "more": ints(0, 0, 1, 1, 0, 0, 1, 1),
}


def check(lab, before, after=None, signature=IMAGE, **more):
    check_rewrite(lab, merge_padding, signature, before, after, tolerance=1e-4, **CONSTANTS, **more)


PAD = "r = Relu(x)\n p = Pad({}, pads)\n"
PLAIN = "r = Relu(x)\n"
CONV = "Conv<kernel_shape=[4,5], pads={}>"
MERGED = {
    "a convolution": (f"y = {CONV}(p, k)", [1, 1, 1, 1], f"y = {CONV}(r, k)", [2, 1, 3, 4]),
    "a convolution without pads": (f"y = {CONV}(p, k)", None, f"y = {CONV}(r, k)", [1, 0, 2, 3]),
    "a max pool": (
        "y = MaxPool<kernel_shape=[4,5], pads={}>(p)",
        [1, 1, 1, 1],
        "y = MaxPool<kernel_shape=[4,5], pads={}>(r)",
        [2, 1, 3, 4],
    ),
    "a max pool without pads": (
        "y = MaxPool<kernel_shape=[4,5], pads={}>(p)",
        None,
        "y = MaxPool<kernel_shape=[4,5], pads={}>(r)",
        [1, 0, 2, 3],
    ),
    "an average that counts": (
        "y = AveragePool<kernel_shape=[4,5], pads={}, count_include_pad=1>(p)",
        [1, 1, 1, 1],
        "y = AveragePool<kernel_shape=[4,5], pads={}, count_include_pad=1>(r)",
        [2, 1, 3, 4],
    ),
    "an average without pads": (
        "y = AveragePool<kernel_shape=[4,5], pads={}>(p)",
        None,
        "y = AveragePool<kernel_shape=[4,5], pads={}, count_include_pad=1>(r)",
        [1, 0, 2, 3],
    ),
    "an average of no padding": (
        "y = AveragePool<kernel_shape=[4,5], pads={}, count_include_pad=0>(p)",
        [0, 0, 0, 0],
        "y = AveragePool<kernel_shape=[4,5], pads={}, count_include_pad=1>(r)",
        [1, 0, 2, 3],
    ),
}


@pytest.mark.parametrize("case", MERGED)
def test_padding_merges(lab, case):
    before, own, after, pads = MERGED[case]
    before = before.replace(", pads={}", "") if own is None else before.format(own)
    check(lab, PAD.format("r") + before, PLAIN + after.format(pads))


@pytest.mark.parametrize("auto", ["NOTSET", "VALID", "SAME_UPPER"])
def test_padding_merges_unless_the_reader_pads_automatically(lab, auto):
    before = f'y = Conv<kernel_shape=[4,5], auto_pad="{auto}">(p, k)'
    after = PLAIN + "y = Conv<kernel_shape=[4,5], pads=[1,0,2,3]>(r, k)"
    check(lab, PAD.format("r") + before, None if auto == "SAME_UPPER" else after)


def test_padding_merges_through_a_quantizer(lab):
    pair = "q = QuantizeLinear({}, s, z)\n d = DequantizeLinear(q, s, z)\n"
    reader = "y = Conv<kernel_shape=[4,5]{}>(d, k)"
    after = PLAIN + pair.format("r") + reader.format(", pads=[1,0,2,3]")
    check(lab, PAD.format("r") + pair.format("p") + reader.format(""), after)
    check(lab, PAD.format("r") + pair.format("p") + "y = Softmax(d)")


POOL = "y = MaxPool<kernel_shape=[4,5]>(p)"
STAY = {
    "a pool of negative values": "p = Pad(x, pads)\n" + POOL,
    "a pool that rounds its size up": PAD.format("r") + POOL.replace("]>", "], ceil_mode=1>"),
    "a pool as high as the padding": PAD.format("r") + "y = MaxPool<kernel_shape=[2,5]>(p)",
    "a pool as wide as the padding": PAD.format("r") + "y = MaxPool<kernel_shape=[4,3]>(p)",
    "an average as high as the padding": PAD.format("r") + "y = AveragePool<kernel_shape=[2,5]>(p)",
    "an average that does not count": PAD.format("r")
    + "y = AveragePool<kernel_shape=[4,5], pads=[0,0,1,0]>(p)",
    "another operator": PAD.format("r") + "y = Softmax(p)",
    "no padding": "p = Softmax(x)\n" + POOL,
    "an output": "y = Pad(x, pads)",
    "the weight of a convolution": "p = Pad(x, pads)\n y = Conv(big, p)",
}


@pytest.mark.parametrize("case", STAY)
def test_padding_stays(lab, case):
    check(lab, STAY[case], big=floats(1, 2, 20, 20))


def test_an_average_of_negative_values_merges(lab):
    check(
        lab,
        "p = Pad(x, pads)\n y = AveragePool<kernel_shape=[4,5]>(p)",
        "y = AveragePool<kernel_shape=[4,5], pads=[1,0,2,3], count_include_pad=1>(x)",
    )


def test_a_padding_with_two_readers_stays(lab):
    signature = IMAGE.replace("(float y)", "(float y, float z)")
    check(lab, "p = Pad(x, pads)\n y = Conv(p, k)\n z = Exp(p)", signature=signature)
    check(lab, "z = Pad(x, pads)\n y = Conv(z, k)", signature=signature)


def test_the_next_padding_is_met_after_one_that_stays(lab):
    signature = IMAGE.replace("(float y)", "(float y, float z)")
    before = "{} o = Pad(x, pads)\n z = Conv<kernel_shape=[4,5]>(o, k)"
    after = "{} z = Conv<kernel_shape=[4,5], pads=[1,0,2,3]>(x, k)"
    for first in (
        "y = Pad(x, pads, one)\n",
        "p = Pad(x, pads)\n y = Softmax(p)\n",
        "y = Pad(x, pads)\n",
    ):
        check(lab, before.format(first), after.format(first), signature=signature)


def test_a_padding_of_a_tensor_of_unknown_rank_stays(lab):
    model = build(
        lab,
        f"{IMAGE} {{ e = Exp(x)\n p = Pad(e, pads)\n y = Conv<kernel_shape=[4,5]>(p, k) }}",
        CONSTANTS,
    )
    lab.node(model, "Exp").outputs[0].shape = None
    assert lab.ops(merge_padding(model))["Pad"] == 1


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("Pad(x, pads)", [1, 0, 2, 3]),
        ("Pad(x, pads, zero)", [1, 0, 2, 3]),
        ('Pad<mode="constant">(x, pads, , )', [1, 0, 2, 3]),
        ("Pad(x, pads, one)", None),
        ("Pad(x, pads, minus)", None),
        ("Pad(x, pads, g)", None),
        ('Pad<mode="edge">(x, pads)', None),
        ('Pad<mode="reflect">(x, pads, zero)', None),
        ("Pad(x, none)", [0, 0, 0, 0]),
        ("Pad(x, batch)", None),
        ("Pad(x, channel)", None),
        ("Pad(x, channel_behind)", None),
        ("Pad(x, cropped)", None),
        ("Pad(x, cropped_and_padded)", None),
        ("Pad(x, n)", None),
        ("Pad(x, four, , axes)", None),
        ("Pad(x, pads, zero, all)", None),
        ("Add(x, eight)", None),
    ],
)
def test_zero_padding(lab, call, expected):
    constants = {
        **CONSTANTS,
        "none": ints(*[0] * 8),
        "batch": ints(1, 0, 1, 0, 0, 0, 2, 3),
        "channel": ints(0, 1, 1, 0, 0, 0, 2, 3),
        "channel_behind": ints(0, 0, 1, 0, 0, 1, 2, 3),
        "cropped": ints(0, 0, -1, 0, 0, 0, 2, 3),
        "cropped_and_padded": ints(0, 0, 1, -1, 0, 0, 1, 1),
        "four": ints(1, 0, 2, 3),
        "axes": ints(2, 3),
        "all": ints(0, 1, 2, 3),
        "eight": np.float32([0, 0, 1, 0, 0, 0, 2, 3]),
    }
    signature = "(float[1,2,6,8] x, float g, int64[8] n) => (float[A,B,C,D] y)"
    model = build(lab, f"{signature} {{ y = {call} }}", constants, opset=18)
    assert zero_padding(model.graph[0]) == expected


def test_zero_padding_of_five_axes(lab):
    model = build(
        lab,
        "(float[1,2,6,7,8] x) => (float y) { y = Pad(x, p) }",
        {"p": ints(0, 0, 1, 1, 0, 0, 1, 1, 0, 0)},
    )
    assert zero_padding(model.graph[0]) is None


NON_NEGATIVE = {
    "x": False,
    "positive": True,
    "mixed": False,
    "Relu(x)": True,
    "Sigmoid(x)": True,
    "Exp(x)": True,
    "Tanh(x)": False,
    "Clip(x, zero)": True,
    "Clip(x, one)": True,
    "Clip(x, minus)": False,
    "Clip(x, , one)": False,
    "Clip(x, g)": False,
    "MaxPool<kernel_shape=[2,2]>(r)": True,
    "MaxPool<kernel_shape=[2,2]>(x)": False,
    "GlobalAveragePool(r)": True,
    "Reshape(r, flat)": True,
    "Reshape(x, flat)": False,
    "Pad(r, more)": True,
    "Pad(r, more, zero)": True,
    "Pad(r, more, one)": True,
    "Pad(r, more, minus)": False,
    "Pad(r, more, g)": False,
    "Pad(x, more)": False,
    "Concat<axis=0>(r, r)": True,
    "Concat<axis=0>(r, x)": False,
    "Concat<axis=0>(x, r)": False,
    "Add(r, one)": True,
    "Add(r, minus)": False,
    "Add(r, positive)": True,
    "Mul(r, mixed)": False,
    "Max(r, r, one)": True,
    "Min(r, one)": True,
    "Min(r, x)": False,
    "Mean(r, positive)": True,
    "Sub(r, r)": False,
}


@pytest.mark.parametrize("text", NON_NEGATIVE)
def test_is_non_negative(lab, text):
    call = f"Identity({text})" if text in ("x", "positive", "mixed") else text
    signature = "(float[1,2,6,7] x, float g) => (float[A,B,C,D] y)"
    model = build(lab, f"{signature} {{ r = Relu(x)\n y = {call}\n z = Exp(r) }}", CONSTANTS)
    node = next(node for node in model.graph if node.outputs[0].name == "y")
    value = node.inputs[0] if call.startswith("Identity") else node.outputs[0]
    assert is_non_negative(value) is NON_NEGATIVE[text]


def test_the_sign_passes_a_quantizer(lab):
    text = "q = QuantizeLinear({0}, s, z)\n y = DequantizeLinear(q, s, z)"
    for source, expected in (("x", False), ("r", True)):
        model = build(
            lab, f"{IMAGE} {{ r = Relu(x)\n {text.format(source)}\n w = Exp(r) }}", CONSTANTS
        )
        assert is_non_negative(model.graph.outputs[0]) is expected


def test_nothing_is_not_non_negative():
    assert not is_non_negative(None)
