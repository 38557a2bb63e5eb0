"""Strides of 1x1 convolutions, moved to the producer or kept."""

import numpy as np
import pytest
from graph_text import assert_same, build, check_rewrite, floats

from qat_lib.export.passes import hoist_strides

IMAGE = "(float[1,2,5,7] x) => (float y)"
TWO = "(float[1,2,5,7] x) => (float y, float z)"
MADE = "c = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(x, k)\n"
SAMPLED = "c = Conv<kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,3]>(x, k)\n"
READ = "Conv<kernel_shape = [1,1], strides = [2,3]>"
READ_ALL = "Conv<kernel_shape = [1,1], strides = [1,1]>"
CONSTANTS = {
    "k": floats(2, 2, 3, 3),
    "one": floats(3, 2, 1, 1),
    "other": floats(4, 2, 1, 1),
    "s": np.float32(0.5),
    "s2": np.float32([0.5, 0.25]),
    "z": np.int8(0),
    "z2": np.zeros(2, np.int8),
    "six": np.float32(6),
    "channel": floats(2, 1, 1),
    "slope": np.float32(0.5),
    "gamma": floats(2),
    "beta": floats(2),
    "mean": floats(2),
    "var": floats(2),
    "row": floats(7),
    "rows": floats(5, 7),
    "column": floats(5, 1),
    "cube": floats(2, 5, 7),
    "map": floats(1, 1, 5, 7),
    "number": floats(1),
    "pair": floats(1, 1),
}


def check(lab, signature, before, after=None):
    check_rewrite(lab, hoist_strides, signature, before, after, tolerance=1e-5, **CONSTANTS)


@pytest.mark.parametrize(
    "kind", ["", ', auto_pad = "VALID"', ', auto_pad = "NOTSET"', ", pads = [0,0,0,0]"]
)
def test_a_convolution_takes_the_stride_of_its_reader(lab, kind):
    read, read_all = (each.replace("[1,1],", f"[1,1]{kind},") for each in (READ, READ_ALL))
    check(lab, IMAGE, MADE + f"y = {read}(c, one)", SAMPLED + f"y = {read_all}(c, one)")


@pytest.mark.parametrize("stride", ["2,2", "1,2", "2,1"])
def test_any_stride_beyond_one_moves(lab, stride):
    before = MADE + f"y = {READ.replace('2,3', stride)}(c, one)"
    check(lab, IMAGE, before, SAMPLED.replace("2,3", stride) + f"y = {READ_ALL}(c, one)")


def test_a_tensor_that_nothing_reads_is_passed_over(lab):
    text = (
        f"p, i = MaxPool<kernel_shape = [1,1]>(x)\n z = Cast<to = 1>(i)\n{MADE} y = {READ}(c, one)"
    )
    after = text.replace(MADE, SAMPLED).replace(READ, READ_ALL)
    check(lab, TWO, text, after)


def test_a_convolution_multiplies_its_own_stride(lab):
    before = MADE.replace(">(x", ", strides = [2,2]>(x") + f"y = {READ}(c, one)"
    after = SAMPLED.replace("[2,3]", "[4,6]") + f"y = {READ_ALL}(c, one)"
    check(lab, IMAGE, before, after)


def test_all_readers_lose_their_stride(lab):
    before = MADE + f"y = {READ}(c, one)\n z = {READ}(c, other)"
    check(lab, TWO, before, SAMPLED + f"y = {READ_ALL}(c, one)\n z = {READ_ALL}(c, other)")
    before = MADE + f"y = {READ}(c, one)\n z = MaxPool<kernel_shape = [1,1], strides = [2,3]>(c)"
    after = SAMPLED.replace("c = ", "z = ") + f"y = {READ_ALL}(z, one)"
    check(lab, TWO, before, after)
    before = MADE + "p = MaxPool<kernel_shape = [1,1], strides = [2,3]>(c)\n y = Exp(p)"
    check(lab, IMAGE, before, SAMPLED + "y = Exp(c)")


STAY = {
    "no stride": MADE + "y = Conv<kernel_shape = [1,1]>(c, one)",
    "strides of one": MADE + f"y = {READ_ALL}(c, one)",
    "a larger kernel": MADE + "y = Conv<kernel_shape = [3,3], strides = [2,2]>(c, k)",
    "a wider kernel": MADE + "y = MaxPool<kernel_shape = [1,3], strides = [2,2]>(c)",
    "an average": MADE + "y = AveragePool<kernel_shape = [1,1], strides = [2,2]>(c)",
    "padding": MADE + f"y = {READ.replace('>', ', pads = [0,0,0,1]>')}(c, one)",
    "automatic padding": MADE
    + READ.replace(">", ', auto_pad = "SAME_UPPER">').join(("y = ", "(c, one)")),
    "the size rounded up": MADE
    + "y = MaxPool<kernel_shape = [1,1], strides = [2,3], ceil_mode = 1>(c)",
    "a maker with automatic padding": MADE.replace("pads = [1,1,1,1]", 'auto_pad = "SAME_UPPER"')
    + f"y = {READ}(c, one)",
    "a maker of another kind": f"e = Softmax<axis = 1>(x)\n y = {READ}(e, one)",
    "an input": f"y = {READ}(x, one)",
}


@pytest.mark.parametrize("case", STAY)
def test_a_stride_stays_at_what_reads_or_makes_more(lab, case):
    check(lab, IMAGE, STAY[case])


@pytest.mark.parametrize(
    "text",
    [
        MADE + f"y = {READ}(c, one)\n z = Exp(c)",
        MADE + f"y = {READ}(c, one)\n z = {READ.replace('2,3', '2,2')}(c, other)",
        MADE + f"z = {READ.replace('2,3', '3,2')}(c, one)\n y = {READ}(c, other)",
        MADE + f"y = {READ}(c, one)\n z = Conv<kernel_shape = [1,1]>(c, other)",
        MADE + f"y = Conv<kernel_shape = [1,1]>(c, one)\n z = {READ}(c, other)",
        MADE.replace("c =", "z =") + f"y = {READ}(z, one)",
        MADE + "y, i = MaxPool<kernel_shape = [1,1], strides = [2,3]>(c)\n z = Cast<to = 1>(i)",
    ],
)
def test_a_stride_stays_where_another_reader_needs_more(lab, text):
    check(lab, TWO, text)


def test_a_sampled_weight_stays(lab):
    signature = "(float[1,2,5,7] x, float[3,2,1,1] g) => (float y)"
    text = f"w = Conv<kernel_shape = [1,1]>(g, square)\n y = {READ}(x, w)"
    model = build(lab, f"{signature} {{ {text} }}", {"square": floats(2, 2, 1, 1)})
    assert_same(hoist_strides(model), model)


def test_a_convolution_of_one_axis_stays(lab):
    signature = "(float[1,2,7] x) => (float y)"
    text = (
        "c = Conv<kernel_shape = [3]>(x, k)\n y = Conv<kernel_shape = [1], strides = [2]>(c, one)"
    )
    check_rewrite(lab, hoist_strides, signature, text, k=floats(2, 2, 3), one=floats(3, 2, 1))


ABOVE = {
    "an activation": "a = Relu(c)",
    "bounds": "a = Clip(c, s, six)",
    "a slope": "a = LeakyRelu<alpha = 0.5>(c)",
    "a quantizer": "q = QuantizeLinear<axis=1>(c, s, z)\n a = DequantizeLinear<axis=1>(q, s, z)",
    "a normalization": "a = BatchNormalization(c, gamma, beta, mean, var)",
    "a scalar": "a = Add(c, s)",
    "a number": "a = Mul(number, c)",
    "two axes of one": "a = Sub(c, pair)",
    "a channel's constant": "a = Sub(channel, c)",
}


@pytest.mark.parametrize("case", ABOVE)
def test_a_stride_passes_an_operator(lab, case):
    before = f"{MADE} {ABOVE[case]}\n y = {READ}(a, one)"
    check(lab, IMAGE, before, f"{SAMPLED} {ABOVE[case]}\n y = {READ_ALL}(a, one)")


def test_blocked_stride_samples_in_front_of_the_operator(lab):
    before = f"e = Softmax<axis = 1>(x)\n a = Relu(e)\n y = {READ}(a, one)"
    pool = "p = MaxPool<kernel_shape = [1,1], strides = [2,3]>(e)\n"
    check(
        lab,
        IMAGE,
        before,
        f"e = Softmax<axis = 1>(x)\n {pool} a = Relu(p)\n y = {READ_ALL}(a, one)",
    )


def test_an_image_of_one_place_needs_no_sampling(lab):
    before = f"g = GlobalAveragePool(x)\n a = Relu(g)\n y = {READ}(a, one)"
    check(lab, IMAGE, before, f"g = GlobalAveragePool(x)\n a = Relu(g)\n y = {READ_ALL}(a, one)")


POOLED = "p = MaxPool<kernel_shape = [1,1], strides = [2,3]>({})\n"
SUMS = {
    "another tensor": ("a = Add(c, e)", "a = Add(c, p)", "e"),
    "another tensor in front": ("a = Sub(e, c)", "a = Sub(p, c)", "e"),
    "a map": ("a = Mul(c, map)", "a = Mul(c, p)", "map"),
}


@pytest.mark.parametrize("case", SUMS)
def test_the_other_operand_of_a_convolution_is_sampled(lab, case):
    before, after, other = SUMS[case]
    front = "e = Softmax<axis = 1>(x)\n"
    before = f"{front} {MADE} {before}\n y = {READ}(a, one)"
    check(
        lab,
        IMAGE,
        before,
        f"{front} {SAMPLED} {POOLED.format(other)} {after}\n y = {READ_ALL}(a, one)",
    )


def test_two_convolutions_both_take_the_stride(lab):
    second = "d = Conv<kernel_shape = [1,1]>(x, square)\n"
    before = f"{MADE} {second} a = Add(c, d)\n y = {READ}(a, one)"
    after = f"{SAMPLED} {second.replace('[1,1]', '[1,1], strides = [2,3]')} a = Add(c, d)\n y = {READ_ALL}(a, one)"
    check_rewrite(
        lab,
        hoist_strides,
        IMAGE,
        before,
        after,
        tolerance=1e-5,
        square=floats(2, 2, 1, 1),
        **CONSTANTS,
    )


NOT_PASSED = {
    "scales of channels": "q = QuantizeLinear<axis=1>(c, s2, z2)\n a = DequantizeLinear<axis=1>(q, s2, z2)",
    "a row of constants": "a = Add(c, row)",
    "an image of constants": "a = Add(c, rows)",
    "a column of constants": "a = Add(c, column)",
    "channels of images": "a = Add(c, cube)",
    "another operator": "a = Div(c, s)",
    "no convolution": "e = Softmax<axis = 1>(c)\n a = Add(e, x)",
    "a convolution with another reader": "b = Relu(c)\n z1 = Exp(c)\n a = Add(c, z1)",
}


@pytest.mark.parametrize("case", NOT_PASSED)
def test_a_stride_does_not_pass_other_operators(lab, case):
    check(lab, IMAGE, f"{MADE} {NOT_PASSED[case]}\n y = {READ}(a, one)")


def test_a_convolution_that_is_an_output_keeps_its_size(lab):
    check(
        lab,
        TWO,
        MADE.replace("c =", "z =")
        + f"e = Softmax<axis = 1>(x)\n a = Add(z, e)\n y = {READ}(a, one)",
    )


@pytest.mark.parametrize("name", ["Conv", "Relu"])
def test_a_tensor_of_unknown_rank_keeps_its_size(lab, name):
    model = build(lab, f"{IMAGE} {{ {MADE} a = Relu(c)\n y = {READ}(a, one) }}", CONSTANTS)
    lab.node(model, name).outputs[0].shape = None
    assert_same(hoist_strides(model), model)


def test_strides_go_up_on_all_ways_at_once(lab):
    before = f"e = Softmax<axis = 1>(x)\n f = Relu(e)\n {MADE} b = Add(c, f)\n a = Relu(b)\n y = {READ}(a, one)"
    after = f"e = Softmax<axis = 1>(x)\n {POOLED.format('e')} f = Relu(p)\n {SAMPLED} b = Add(c, f)\n a = Relu(b)\n"
    check(lab, IMAGE, before, after + f"y = {READ_ALL}(a, one)")


def test_a_stride_goes_up_as_far_as_it_can(lab):
    before = f"{MADE} b = Relu(c)\n a = Mul(b, channel)\n d = Clip(a, s, six)\n y = {READ}(d, one)"
    after = f"{MADE} b = Relu(c)\n a = Mul(b, channel)\n {POOLED.format('a')} d = Clip(p, s, six)\n"
    after += f"y = {READ_ALL}(d, one)"
    check(lab, IMAGE, before, after)  # no convolution stands in front of the product


def test_an_image_of_open_size(lab):
    signature = "(float[N,2,H,7] x) => (float y)"
    model = build(lab, f"{signature} {{ {MADE} a = Relu(c)\n y = {READ}(a, one) }}", CONSTANTS)
    lowered = lab.check(model, hoist_strides, {"x": floats(2, 2, 5, 7)}, rtol=1e-5)
    assert [list(map(str, node.outputs[0].shape)) for node in lowered.graph][:2] == [
        ["N", "2", "None", "3"]
    ] * 2
