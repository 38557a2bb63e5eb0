"""Transposes: sunk, cancelled, lifted, reshaped, or moved into a weight."""

import numpy as np
import pytest

from qat_lib.export import passes


def nhwc(rng, *shape):
    return {"x": rng.normal(size=shape).astype(np.float32)}


def conv_weight(rng, out, into, size=3):
    return rng.normal(size=(out, into, size, size)).astype(np.float32)


def test_transposes_between_convolutions_cancel_through_pointwise_operators(lab, rng):
    model = lab.build(
        """(float[N,8,8,3] x) => (float[N,4,4,4] y) {
            a = Transpose<perm = [0,3,1,2]>(x)
            b = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(a, w1)
            c = Transpose<perm = [0,2,3,1]>(b)
            d = Add(c, bias)
            e = Relu(d)
            q = QuantizeLinear<axis = 1>(e, s, z)
            f = DequantizeLinear<axis = 1>(q, s, z)
            g = Transpose<perm = [0,3,1,2]>(f)
            h = MaxPool<kernel_shape = [2,2], strides = [2,2]>(g)
            i = Transpose<perm = [0,2,3,1]>(h)
            y = Clip(i, zero) }""",
        w1=conv_weight(rng, 4, 3),
        bias=rng.normal(size=4).astype(np.float32),
        s=np.asarray(0.02, np.float32),
        z=np.zeros((), np.int8),
        zero=np.asarray(0, np.float32),
    )
    lowered = lab.check(model, passes.remove_transposes, nhwc(rng, 2, 8, 8, 3))
    # One at the image input and one at the image output: both are part of the model's interface.
    assert lab.ops(lowered)["Transpose"] == 2
    assert lab.order(lowered)[0] == "Transpose"
    assert lab.order(lowered)[-1] == "Transpose"


def test_transpose_lifted_over_preprocessing_padding_and_quantizer(lab, rng):
    model = lab.build(
        """(float[N,6,6,3] x) => (float[N,4] y) {
            a = Sub(x, mean)
            b = Pad(a, pads)
            q = QuantizeLinear<axis = 1>(b, s, z)
            c = DequantizeLinear<axis = 1>(q, s, z)
            d = Transpose<perm = [0,3,1,2]>(c)
            e = Conv<kernel_shape = [3,3]>(d, w)
            f = GlobalAveragePool(e)
            y = Flatten<axis = 1>(f) }""",
        mean=rng.normal(size=3).astype(np.float32),
        pads=np.asarray([0, 1, 2, 0, 0, 3, 4, 0], np.int64),
        s=np.asarray(0.02, np.float32),
        z=np.zeros((), np.int8),
        w=conv_weight(rng, 4, 3),
    )
    lowered = lab.check(model, passes.remove_transposes, nhwc(rng, 2, 6, 6, 3))
    assert lab.order(lowered)[:5] == [
        "Transpose",
        "Sub",
        "Pad",
        "QuantizeLinear",
        "DequantizeLinear",
    ]


def test_reductions_concats_softmax_and_slices_keep_their_meaning(lab, rng):
    model = lab.build(
        """(float[2,5,6,3] x) => (float[2,2,6,6] y, float[2,3] m, float[2,1,1,3] k) {
            a = Transpose<perm = [0,3,1,2]>(x)
            r = MaxPool<kernel_shape = [1,1]>(a)
            b = Transpose<perm = [0,2,3,1]>(r)
            c = Sigmoid(b)
            d = Concat<axis = 3>(b, c)
            e = Softmax<axis = 3>(d)
            y = Slice(e, starts, ends, axes)
            m = ReduceMean<axes = [1,2], keepdims = 0>(c)
            k = ReduceMax<axes = [1,2], keepdims = 1>(c) }""",
        starts=np.asarray([1], np.int64),
        ends=np.asarray([3], np.int64),
        axes=np.asarray([1], np.int64),
    )
    lowered = lab.check(model, passes.remove_transposes, nhwc(rng, 2, 5, 6, 3), rtol=1e-6)
    assert lab.node(lowered, "Concat").attributes["axis"].value == 1
    assert list(lab.node(lowered, "ReduceMean").attributes["axes"].value) == [2, 3]


def test_reduction_that_reorders_kept_axes_is_left(lab, rng):
    model = lab.build(
        """(float[2,5,6,3] x) => (float[2,6,5] y) {
            a = Relu(x)
            b = Transpose<perm = [0,2,3,1]>(a)
            y = ReduceMean<axes = [2], keepdims = 0>(b) }"""
    )
    lab.check(model, passes.remove_transposes, nhwc(rng, 2, 5, 6, 3), rtol=1e-6)


def test_transpose_passes_gate_of_one_pixel(lab, rng):
    model = lab.build(
        """(float[2,4,4,3] x, float[2,1,1,3] g) => (float[2,3,4,4] y) {
            a = Transpose<perm = [0,3,1,2]>(x)
            b = MaxPool<kernel_shape = [1,1]>(a)
            c = Transpose<perm = [0,2,3,1]>(b)
            d = Mul(c, g)
            e = Transpose<perm = [0,3,1,2]>(d)
            y = Relu(e) }"""
    )
    x = nhwc(rng, 2, 4, 4, 3) | {"g": rng.normal(size=(2, 1, 1, 3)).astype(np.float32)}
    lowered = lab.check(model, passes.remove_transposes, x)
    assert lab.ops(lowered)["Transpose"] == 2  # the input's and the gate's, which moves no data


def test_per_channel_quantizers_are_not_passed(lab, rng):
    model = lab.build(
        """(float[2,4,4,3] x) => (float[2,4,4,3] y) {
            a = Transpose<perm = [0,3,1,2]>(x)
            r = Relu(a)
            t = Transpose<perm = [0,2,3,1]>(r)
            q = QuantizeLinear<axis = 3>(t, s, z)
            y = DequantizeLinear<axis = 3>(q, s, z) }""",
        s=np.asarray([0.1, 0.2, 0.3], np.float32),
        z=np.zeros(3, np.int8),
    )
    lab.check(model, passes.remove_transposes, nhwc(rng, 2, 4, 4, 3))


def test_dense_on_nhwc_becomes_a_pointwise_convolution(lab, rng):
    model = lab.build(
        """(float[2,3,4,4] x) => (float[2,5,4,4] y) {
            a = Relu(x)
            b = Transpose<perm = [0,2,3,1]>(a)
            w = DequantizeLinear<axis = 1>(i, s, z)
            c = MatMul(b, w)
            d = Transpose<perm = [0,3,1,2]>(c)
            y = Relu(d) }""",
        i=rng.integers(-127, 128, (3, 5)).astype(np.int8),
        s=rng.uniform(0.01, 0.1, 5).astype(np.float32),
        z=np.zeros(5, np.int8),
    )
    lowered = lab.check(
        model, passes.remove_transposes, nhwc(rng, 2, 3, 4, 4), rtol=1e-5, atol=1e-5
    )
    assert lab.order(lowered) == ["Relu", "DequantizeLinear", "Conv", "Relu"]
    assert lab.node(lowered, "DequantizeLinear").attributes["axis"].value == 0


@pytest.mark.parametrize("gap_quantized", [True, False])
def test_squeeze_and_excite_loses_its_reshapes(lab, rng, gap_quantized):
    middle = (
        "q = QuantizeLinear<axis=1>(c, s, z)\n d = DequantizeLinear<axis=1>(q, s, z)"
        if gap_quantized
        else ""
    )
    model = lab.build(
        f"""(float[N,3,4,4] x) => (float[N,2,1,1] y) {{
            a = GlobalAveragePool(x)
            b = Flatten<axis = 1>(a)
            c = Reshape(b, shape)
            {middle}
            e = Transpose<perm = [0,3,1,2]>({"d" if gap_quantized else "c"})
            y = Conv<kernel_shape = [1,1]>(e, w) }}""",
        shape=np.asarray([-1, 1, 1, 3], np.int64),
        s=np.asarray(0.01, np.float32),
        z=np.zeros((), np.int8),
        w=conv_weight(rng, 2, 3, 1),
    )
    lowered = lab.check(model, passes.eliminate_singleton_reshapes, nhwc(rng, 2, 3, 4, 4))
    assert not {"Reshape", "Flatten", "Transpose"} & set(lab.ops(lowered))


def test_a_thin_reshape_passes_a_hard_sigmoid(lab, rng):
    model = lab.build(
        """(float[N,3,4,4] x) => (float[N,3,4,4] y) {
            a = GlobalAveragePool(x)
            b = Flatten<axis = 1>(a)
            c = Add(b, three)
            d = Clip(c, zero, six)
            e = Reshape(d, shape)
            y = Mul(x, e) }""",
        three=np.asarray(3, np.float32),
        zero=np.asarray(0, np.float32),
        six=np.asarray(6, np.float32),
        shape=np.asarray([-1, 3, 1, 1], np.int64),
    )
    lowered = lab.check(model, passes.eliminate_singleton_reshapes, nhwc(rng, 2, 3, 4, 4))
    assert lab.order(lowered) == ["GlobalAveragePool", "Add", "Clip", "Mul"]


def test_a_reshape_that_regroups_data_stays(lab, rng):
    model = lab.build(
        "(float[2,3,4] x) => (float[2,3,4] y) { a = Reshape(x, s)\n b = Relu(a)\n y = Reshape(b, t) }",
        s=np.asarray([2, 12], np.int64),
        t=np.asarray([2, 3, 4], np.int64),
    )
    assert (
        lab.ops(lab.check(model, passes.eliminate_singleton_reshapes, nhwc(rng, 2, 3, 4)))[
            "Reshape"
        ]
        == 2
    )


@pytest.mark.parametrize("stored", ["float", "int8"])
def test_flattened_features_keep_the_convolutions_order(lab, rng, stored):
    weight = "w = DequantizeLinear<axis = 1>(i, s, z)" if stored == "int8" else "w = Identity(f)"
    model = lab.build(
        f"""(float[N,3,2,4] x) => (float[N,5] y) {{
            {weight}
            a = Transpose<perm = [0,2,3,1]>(x)
            b = Reshape(a, flat)
            c = Relu(b)
            y = Gemm(c, w, bias) }}""",
        flat=np.asarray([-1, 24], np.int64),
        bias=rng.normal(size=5).astype(np.float32),
        i=rng.integers(-127, 128, (24, 5)).astype(np.int8),
        f=rng.normal(size=(24, 5)).astype(np.float32),
        s=rng.uniform(0.01, 0.1, 5).astype(np.float32),
        z=np.zeros(5, np.int8),
    )
    model = passes.fold_constants(model)
    lowered = lab.check(
        model, passes.reorder_flattened_weights, nhwc(rng, 2, 3, 2, 4), rtol=1e-5, atol=1e-5
    )
    assert lab.ops(lowered)["Transpose"] == 0


def test_flattened_features_with_a_second_reader_stay(lab, rng):
    model = lab.build(
        """(float[N,3,2,4] x) => (float[N,5] y, float[N,24] z) {
            a = Transpose<perm = [0,2,3,1]>(x)
            b = Reshape(a, flat)
            z = Relu(b)
            y = Gemm(b, w) }""",
        flat=np.asarray([-1, 24], np.int64),
        w=rng.normal(size=(24, 5)).astype(np.float32),
    )
    lowered = lab.check(model, passes.reorder_flattened_weights, nhwc(rng, 2, 3, 2, 4))
    assert lab.ops(lowered)["Transpose"] == 1
