"""Global pools, and quantizers moved before a max pool."""

import numpy as np
import pytest
from graph_text import assert_same, build, check_rewrite, ints

from qat_lib.export.passes import quantize_early, rectify_early, use_global_pools

OPEN = "(float[N,3,H,5] x) => (float y)"
GLOBAL = {
    "a mean": ("y = ReduceMean<axes=[2,3]>(x)", "y = GlobalAveragePool(x)"),
    "a mean kept": ("y = ReduceMean<axes=[3,-2], keepdims=1>(x)", "y = GlobalAveragePool(x)"),
    "a maximum": ("y = ReduceMax<axes=[-1,-2]>(x)", "y = GlobalMaxPool(x)"),
    "a mean dropped": (
        "y = ReduceMean<axes=[2,3], keepdims=0>(x)",
        "a = GlobalAveragePool(x)\n y = Flatten<axis=1>(a)",
    ),
    "a mean of another rank, and one": (
        "a = Squeeze(x, last)\n y = GlobalAveragePool(x)",
        None,
    ),
    "one axis": ("y = ReduceMean<axes=[2]>(x)", None),
    "other axes": ("y = ReduceMean<axes=[1,2]>(x)", None),
    "three axes": ("y = ReduceMean<axes=[1,2,3]>(x)", None),
    "all axes": ("y = ReduceMean(x)", None),
    "a sum": ("y = ReduceSum(x, image)", None),
}


@pytest.mark.parametrize("case", GLOBAL)
def test_a_reduction_over_the_image_is_a_global_pool(lab, case):
    before, after = GLOBAL[case]
    signature = OPEN.replace("5]", "1]") if "last" in before else OPEN
    check_rewrite(
        lab,
        use_global_pools,
        signature,
        before,
        after,
        tolerance=1e-5,
        image=ints(2, 3),
        last=ints(3),
    )


@pytest.mark.parametrize("axes", ["[2,3]", "[-1,2]"])
def test_the_axes_of_a_reduction_may_be_an_operand(lab, axes):
    values = ints(*map(int, axes.strip("[]").split(",")))
    check_rewrite(
        lab,
        use_global_pools,
        OPEN,
        "y = ReduceMax(x, axes)",
        "y = GlobalMaxPool(x)",
        opset=18,
        axes=values,
    )


def test_a_reduction_of_computed_axes_stays(lab):
    model = build(
        lab,
        "(float[2,3,4,5] x, int64[2] n) => (float[A,B,C,D] y) { y = ReduceMean(x, n) }",
        {},
        opset=18,
    )
    assert_same(use_global_pools(model), model)


@pytest.mark.parametrize(
    ("sizes", "axes"), [("2,3,4", "[2]"), ("2,3,4,5,6", "[2,3]"), ("2,3,4,5,6", "[2,3,4]")]
)
def test_a_reduction_of_another_rank_stays(lab, sizes, axes):
    check_rewrite(
        lab, use_global_pools, f"(float[{sizes}] x) => (float y)", f"y = ReduceMean<axes={axes}>(x)"
    )


def test_the_next_reduction_is_met_after_one_that_stays(lab):
    signature = "(float[2,3,4,5] x) => (float y, float z)"
    for first in ("y = ReduceSum(x, image)", "y = ReduceMean<axes=[1]>(x)"):
        before, after = f"{first}\n z = ReduceMax<axes=[2,3]>(x)", f"{first}\n z = GlobalMaxPool(x)"
        check_rewrite(
            lab, use_global_pools, signature, before, after, tolerance=1e-5, image=ints(2, 3)
        )


SCALES = {
    "s": np.float32(0.1),
    "s1": np.float32([0.1]),
    "s2": np.float32([0.1, 0.2]),
    "z": np.int8(0),
    "z1": np.int8([0]),
    "z2": np.zeros(2, np.int8),
}
IMAGE = "(float[1,2,6,7] x) => (float y)"
TWO = "(float[1,2,6,7] x) => (float y, float z9)"
PAIR = "q = QuantizeLinear<axis=1>({0}, {1})\n d = DequantizeLinear<axis=1>(q, {1})\n"
POOL = "p = MaxPool<kernel_shape=[2,3]>({})\n"
FRONT = "r = Softmax<axis=1>(x)\n"


@pytest.mark.parametrize("scale", ["s, z", "s1, z1"])
def test_a_quantizer_moves_in_front_of_a_max_pool(lab, scale):
    before = FRONT + POOL.format("r") + PAIR.format("p", scale) + "y = Exp(d)"
    after = FRONT + PAIR.format("r", scale) + POOL.format("d") + "y = Exp(p)"
    check_rewrite(lab, quantize_early, IMAGE, before, after, **SCALES)


def test_a_quantizer_moves_from_the_output(lab):
    before = FRONT + POOL.format("r") + PAIR.format("p", "s, z").replace("d =", "y =")
    after = FRONT + PAIR.format("r", "s, z") + POOL.format("d").replace("p =", "y =")
    check_rewrite(lab, quantize_early, IMAGE, before, after, **SCALES)


SIGNED = "r = Neg(x)\n"
RELUS = "a = Relu({})\n b = Relu({})\n y = Sub(a, b)"


@pytest.mark.parametrize("scale", ["s, z", "s2, z2"])
def test_a_relu_moves_in_front_of_the_quantizer_of_several(lab, scale):
    before = SIGNED + PAIR.format("r", scale) + RELUS.format("d", "d")
    after = SIGNED + "f = Relu(r)\n" + PAIR.format("f", scale) + "y = Sub(d, d)"
    check_rewrite(lab, rectify_early, IMAGE, before, after, **SCALES)


@pytest.mark.parametrize(
    "before",
    [
        PAIR.format("r", "s, z") + "a = Relu(d)\n y = Exp(a)",
        PAIR.format("r", "s, z") + RELUS.format("d", "d").replace("Sub(a, b)", "Sum(a, b, d)"),
        PAIR.format("r", "s, z") + RELUS.format("d", "d").replace("b = Relu", "b = Exp"),
        PAIR.format("r", "s, z") + RELUS.format("d", "r"),
        "d = Exp(r)\n" + RELUS.format("d", "d"),
    ],
)
def test_other_relus_stay_behind_the_quantizer(lab, before):
    check_rewrite(lab, rectify_early, IMAGE, SIGNED + before, **SCALES)


POOLED = FRONT + POOL.format("r")
WHOLE = POOLED + PAIR.format("p", "s, z")
BEHIND = {
    "scales of channels": POOLED + PAIR.format("p", "s2, z2") + "y = Exp(d)",
    "an average": WHOLE.replace("Max", "Average") + "y = Exp(d)",
    "no quantizer": POOLED + "d = Relu(p)\n y = Exp(d)",
    "no dequantizer": POOLED + "q = QuantizeLinear(p, s, z)\n y = Cast<to=1>(q)",
    "a pool of an input that others read": WHOLE + "y = Exp(r)\n z9 = Exp(d)",
    "a pool of an output": WHOLE.replace("r =", "y =").replace("(r)", "(y)") + "z9 = Exp(d)",
    "a pool of an input that others read, too": WHOLE + "m = ReduceMax(r)\n y = Add(d, m)",
    "a pool that others read": WHOLE + "y = Exp(p)\n z9 = Exp(d)",
    "integers that others read": WHOLE + "y = Cast<to=1>(q)\n z9 = Exp(d)",
    "places of the maxima": WHOLE.replace("p =", "p, i =") + "y = Exp(d)\n z9 = Cast<to=1>(i)",
}


@pytest.mark.parametrize("case", BEHIND)
def test_a_quantizer_stays_behind_a_pool(lab, case):
    check_rewrite(
        lab,
        quantize_early,
        TWO if "z9" in BEHIND[case] else IMAGE,
        BEHIND[case],
        **SCALES,
    )


@pytest.mark.parametrize("case", [case for case in BEHIND if "z9" not in BEHIND[case]])
def test_the_next_pool_is_met_after_one_that_stays(lab, case):
    second = "e = Softmax<axis=2>(x)\n o = MaxPool<kernel_shape=[3,2]>(e)\n"
    pair = "g = QuantizeLinear({}, s, z)\n h = DequantizeLinear(g, s, z)\n"
    before = f"{BEHIND[case]}\n {second} {pair.format('o')} z9 = Exp(h)"
    first, last = second.split("\n")[:2]
    after = (
        f"{BEHIND[case]}\n {first}\n {pair.format('e')} {last.replace('(e)', '(h)')}\n z9 = Exp(o)"
    )
    check_rewrite(lab, quantize_early, TWO, before, after, **SCALES)
