"""BatchNormalization, bias, padding, pools and strides: less work, the same numbers."""

import numpy as np
import pytest

from qat_lib.export import passes
from qat_lib.export.graph import BATCH_NORM, FACTOR, LAYER, QUANTIZER, BatchNorm


def image(rng, *shape):
    return {"x": rng.normal(size=shape).astype(np.float32)}


def norm(rng, channels, gamma=None):
    return BatchNorm(
        gamma=rng.uniform(0.5, 2, channels).astype(np.float32)
        if gamma is None
        else np.asarray(gamma, np.float32),
        beta=rng.normal(size=channels).astype(np.float32),
        mean=rng.normal(size=channels).astype(np.float32),
        variance=rng.uniform(0.5, 2, channels).astype(np.float32),
        epsilon=1e-3,
    )


def as_constants(n):
    return {"gamma": n.gamma, "beta": n.beta, "mean": n.mean, "var": n.variance}


LAYERS = {
    "conv": ("Conv<kernel_shape = [3,3]>(x, w)", (4, 2, 3, 3), 0, (2, 2, 5, 5)),
    "conv with bias": ("Conv<kernel_shape = [3,3]>(x, w, b)", (4, 2, 3, 3), 0, (2, 2, 5, 5)),
    "depthwise": ("Conv<kernel_shape = [3,3], group = 2>(x, w)", (4, 1, 3, 3), 0, (2, 2, 5, 5)),
    "transposed": ("ConvTranspose<kernel_shape = [2,2]>(x, w, b)", (2, 4, 2, 2), 1, (2, 2, 5, 5)),
    "dense": ("MatMul(x, w)", (6, 4), 1, (2, 6)),
    "dense with bias": ("Gemm(x, w, b)", (6, 4), 1, (2, 6)),
}


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_batch_norm_folds_into_scale_and_bias(lab, rng, layer, quantized):
    call, shape, axis, input_shape = LAYERS[layer]
    n = norm(rng, 4, gamma=[1.5, -0.7, 0.0, 0.01])
    integers = rng.integers(-127, 128, shape).astype(np.int8)
    scale = rng.uniform(1e-3, 0.1, 4).astype(np.float32)
    weight = f"w = DequantizeLinear<axis = {axis}>(i, s, z)" if quantized else "w = Identity(f)"
    dims = ",".join(map(str, input_shape))
    model = lab.build(
        f"""(float[{dims}] x) => (float y) {{
            {weight}
            c = {call}
            y = BatchNormalization<epsilon = 0.001>(c, gamma, beta, mean, var) }}""",
        i=integers,
        s=scale,
        z=np.zeros(4, np.int8),
        f=rng.normal(size=shape).astype(np.float32),
        b=rng.normal(size=4).astype(np.float32),
        **as_constants(n),
    )
    model = passes.fold_constants(model)
    lowered = lab.check(
        model, passes.fold_batchnorm, image(rng, *input_shape), rtol=2e-5, atol=2e-5
    )
    assert lab.ops(lowered)["BatchNormalization"] == 0
    if quantized:
        node = lab.node(lowered, "DequantizeLinear")
        after, new_scale = (np.asarray(v.const_value.numpy()) for v in node.inputs[:2])
        sign = np.reshape([1, -1, 0, 1], [-1 if i == axis else 1 for i in range(len(shape))])
        # The integers are the trained ones, bit for bit.
        np.testing.assert_array_equal(after, integers * sign)
        expected = np.where(n.gamma == 0, scale, scale * np.abs(n.factor)).astype(np.float32)
        np.testing.assert_array_equal(new_scale, expected)
        assert np.all(new_scale > 0)
        np.testing.assert_allclose(node.meta[FACTOR], n.factor)


def test_a_per_tensor_scale_becomes_per_channel(lab, rng):
    n = norm(rng, 4)
    model = lab.build(
        """(float[2,2,5,5] x) => (float[2,4,3,3] y) {
            w = DequantizeLinear<axis = 1>(i, s, z)
            c = Conv<kernel_shape = [3,3]>(x, w)
            y = BatchNormalization<epsilon = 0.001>(c, gamma, beta, mean, var) }""",
        i=rng.integers(-127, 128, (4, 2, 3, 3)).astype(np.int8),
        s=np.asarray(0.05, np.float32),
        z=np.zeros((), np.int8),
        **as_constants(n),
    )
    lowered = lab.check(model, passes.fold_batchnorm, image(rng, 2, 2, 5, 5), rtol=2e-5, atol=2e-5)
    assert lab.node(lowered, "DequantizeLinear").inputs[1].const_value.numpy().shape == (4,)
    assert lab.node(lowered, "DequantizeLinear").attributes["axis"].value == 0


def test_shared_weight_is_folded_for_each_layer(lab, rng):
    n = norm(rng, 2)
    model = lab.build(
        """(float[1,2,4,4] x) => (float[1,2,4,4] y) {
            w = DequantizeLinear<axis = 0>(i, s, z)
            c = Conv<kernel_shape = [1,1]>(x, w)
            d = BatchNormalization<epsilon = 0.001>(c, gamma, beta, mean, var)
            y = Conv<kernel_shape = [1,1]>(d, w) }""",
        i=rng.integers(-127, 128, (2, 2, 1, 1)).astype(np.int8),
        s=rng.uniform(1e-3, 0.1, 2).astype(np.float32),
        z=np.zeros(2, np.int8),
        **as_constants(n),
    )
    lab.node(model, "DequantizeLinear").meta[QUANTIZER] = "w"
    lowered = lab.check(model, passes.fold_batchnorm, image(rng, 1, 2, 4, 4), rtol=2e-5, atol=2e-5)
    first, second = (n for n in lowered.graph if n.op_type == "DequantizeLinear")
    assert first.inputs[0] is second.inputs[0] or not np.all(n.factor > 0)
    assert first.meta[QUANTIZER] == second.meta[QUANTIZER] == "w"


@pytest.mark.parametrize(
    "reader",
    [
        "y2 = Relu(c)",
        "q = QuantizeLinear<axis=1>(c, one, zp)\n y2 = DequantizeLinear<axis=1>(q, one, zp)",
    ],
)
def test_batch_norm_stays_when_something_else_reads_the_layer(lab, rng, reader):
    model = lab.build(
        f"""(float[2,2,5,5] x) => (float[2,4,3,3] y, float[2,4,3,3] y2) {{
            c = Conv<kernel_shape = [3,3]>(x, w)
            {reader}
            y = BatchNormalization<epsilon = 0.001>(c, gamma, beta, mean, var) }}""",
        w=rng.normal(size=(4, 2, 3, 3)).astype(np.float32),
        one=np.asarray(1, np.float32),
        zp=np.zeros((), np.int8),
        **as_constants(norm(rng, 4)),
    )
    assert (
        lab.ops(lab.check(model, passes.fold_batchnorm, image(rng, 2, 2, 5, 5)))[
            "BatchNormalization"
        ]
        == 1
    )


def pieces(lab, rng, n, shape, constant_shape):
    factor = (n.gamma / np.sqrt(n.variance + n.epsilon)).astype(np.float32)
    dims = ",".join(map(str, shape))
    model = lab.build(
        f"(float[{dims}] x) => (float[{dims}] y) {{ r = Relu(x)\n a = Mul(r, f)\n y = Add(a, o) }}",
        f=factor.reshape(constant_shape),
        o=(n.beta - n.mean * factor).reshape(constant_shape),
    )
    for node in model.graph:
        if node.op_type != "Relu":
            node.meta[LAYER], node.meta[BATCH_NORM] = "bn", n
    return model


@pytest.mark.parametrize(("shape", "constant"), [((2, 3, 4, 4), (1, 3, 1, 1)), ((2, 3), (3,))])
def test_the_pieces_of_a_batch_norm_become_one_node(lab, rng, shape, constant):
    n = norm(rng, 3)
    lowered = lab.check(
        pieces(lab, rng, n, shape, constant),
        passes.recover_batchnorm,
        image(rng, *shape),
        rtol=1e-5,
        atol=1e-5,
    )
    assert lab.order(lowered) == ["Relu", "BatchNormalization"]
    np.testing.assert_array_equal(
        lab.node(lowered, "BatchNormalization").inputs[1].const_value.numpy(), n.gamma
    )


def test_other_layout_or_numbers_keep_batchnorm_pieces(lab, rng):
    n = norm(rng, 3)
    last = pieces(lab, rng, n, (2, 4, 4, 3), (1, 1, 1, 3))
    assert lab.ops(passes.recover_batchnorm(last))["BatchNormalization"] == 0
    other = pieces(lab, rng, norm(rng, 3), (2, 3, 4, 4), (1, 3, 1, 1))
    for node in other.graph:
        if BATCH_NORM in node.meta:
            node.meta[BATCH_NORM] = n
    assert lab.ops(passes.recover_batchnorm(other))["BatchNormalization"] == 0


def test_biases_merge_and_a_product_becomes_gemm(lab, rng):
    model = lab.build(
        """(float[2,2,5,5] x) => (float[2,6] y) {
            c = Conv<kernel_shape = [3,3]>(x, w, b)
            d = Add(c, more)
            p = GlobalAveragePool(d)
            f = Flatten<axis = 1>(p)
            m = MatMul(f, k)
            y = Add(offset, m) }""",
        w=rng.normal(size=(4, 2, 3, 3)).astype(np.float32),
        b=rng.normal(size=4).astype(np.float32),
        more=rng.normal(size=(1, 4, 1, 1)).astype(np.float32),
        k=rng.normal(size=(4, 6)).astype(np.float32),
        offset=rng.normal(size=6).astype(np.float32),
    )
    lowered = lab.check(model, passes.merge_bias, image(rng, 2, 2, 5, 5), rtol=1e-5, atol=1e-5)
    assert lab.order(lowered) == ["Conv", "GlobalAveragePool", "Flatten", "Gemm"]


def test_an_add_that_is_no_bias_stays(lab, rng):
    model = lab.build(
        "(float[1,2,4,4] x) => (float[1,3,4,4] y) { c = Conv<kernel_shape = [1,1]>(x, w)\n y = Add(c, map) }",
        w=rng.normal(size=(3, 2, 1, 1)).astype(np.float32),
        map=rng.normal(size=(1, 1, 4, 4)).astype(np.float32),
    )
    assert lab.ops(lab.check(model, passes.merge_bias, image(rng, 1, 2, 4, 4)))["Add"] == 1


PADS = np.asarray([0, 0, 1, 0, 0, 0, 2, 1], np.int64)
MERGES = {
    "convolution": ("p = Pad(x, pads)\n y = Conv<kernel_shape=[3,3], pads=[1,0,0,1]>(p, w)", True),
    "convolution behind Q/DQ": (
        "p = Pad(x, pads)\n q = QuantizeLinear<axis=1>(p, s, z)\n d = DequantizeLinear<axis=1>(q, s, z)\n"
        "y = Conv<kernel_shape=[3,3]>(d, w)",
        True,
    ),
    "max pool of a ReLU": (
        "r = Relu(x)\n p = Pad(r, pads)\n y = MaxPool<kernel_shape=[3,3], strides=[2,2]>(p)",
        True,
    ),
    "max pool of anything": ("p = Pad(x, pads)\n y = MaxPool<kernel_shape=[3,3]>(p)", False),
    "max pool narrower than the padding": (
        "r = Relu(x)\n p = Pad(r, pads)\n y = MaxPool<kernel_shape=[2,2]>(p)",
        False,
    ),
    "average pool": ("p = Pad(x, pads)\n y = AveragePool<kernel_shape=[3,3]>(p)", True),
    "average pool with its own uncounted padding": (
        "p = Pad(x, pads)\n y = AveragePool<kernel_shape=[4,4], pads=[1,1,1,1]>(p)",
        False,
    ),
    "padding with ones": ("p = Pad(x, pads, one)\n y = Conv<kernel_shape=[3,3]>(p, w)", False),
    "padded channels": ("p = Pad(x, cpads)\n y = Conv<kernel_shape=[3,3]>(p, w4)", False),
    "two readers": (
        "p = Pad(x, pads)\n a = Conv<kernel_shape=[3,3]>(p, w)\n b = ReduceSum<keepdims=0>(p)\n y = Add(a, b)",
        False,
    ),
}


@pytest.mark.parametrize("case", MERGES)
def test_padding_merges_where_the_arithmetic_allows(lab, rng, case):
    text, merged = MERGES[case]
    model = lab.build(
        f"(float[1,2,6,6] x) => (float y) {{ {text} }}",
        pads=PADS,
        cpads=np.asarray([0, 1, 1, 0, 0, 1, 0, 0], np.int64),
        one=np.asarray(1, np.float32),
        w=rng.normal(size=(3, 2, 3, 3)).astype(np.float32),
        w4=rng.normal(size=(3, 4, 3, 3)).astype(np.float32),
        s=np.asarray(0.02, np.float32),
        z=np.zeros((), np.int8),
    )
    lowered = lab.check(model, passes.merge_padding, image(rng, 1, 2, 6, 6), rtol=1e-5, atol=1e-5)
    assert (lab.ops(lowered)["Pad"] == 0) == merged


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize(
    ("op", "pool"), [("ReduceMean", "GlobalAveragePool"), ("ReduceMax", "GlobalMaxPool")]
)
def test_reductions_over_the_image_become_global_pools(lab, rng, op, pool, keep, opset):
    call = (
        f"{op}<axes = [2, -1], keepdims = {keep}>(x)"
        if opset < 18
        else f"{op}<keepdims = {keep}>(x, axes)"
    )
    out = "float[2,3,1,1]" if keep else "float[2,3]"
    model = lab.build(
        f"(float[2,3,4,5] x) => ({out} y) {{ y = {call} }}",
        opset=opset,
        axes=np.asarray([2, 3], np.int64),
    )
    lowered = lab.check(
        model, passes.use_global_pools, image(rng, 2, 3, 4, 5), rtol=1e-6, atol=1e-7
    )
    assert lab.order(lowered) == ([pool] if keep else [pool, "Flatten"])


def test_a_mean_over_channels_stays(lab, rng):
    model = lab.build(
        "(float[2,3,4,5] x) => (float[2,4,5] y) { y = ReduceMean<axes = [1], keepdims = 0>(x) }"
    )
    assert lab.order(lab.check(model, passes.use_global_pools, image(rng, 2, 3, 4, 5))) == [
        "ReduceMean"
    ]


def test_quantization_moves_in_front_of_a_max_pool(lab, rng):
    text = """(float[1,2,6,6] x) => (float[1,2,3,3] y) {
        r = Relu(x)
        p = MaxPool<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(r)
        q = QuantizeLinear<axis = 1>(p, s, z)
        d = DequantizeLinear<axis = 1>(q, s, z)
        y = Relu(d) }"""
    model = lab.build(text, s=np.asarray(0.013, np.float32), z=np.zeros((), np.int8))
    lowered = lab.check(model, passes.quantize_early, image(rng, 1, 2, 6, 6))
    assert lab.order(lowered) == ["Relu", "QuantizeLinear", "DequantizeLinear", "MaxPool", "Relu"]


def test_quantizer_stays_behind_pool_of_shared_input(lab, rng):
    model = lab.build(
        """(float[1,2,6,6] x) => (float[1,2,6,6] a, float[1,2,3,3] y) {
            a = Relu(x)
            p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(a)
            q = QuantizeLinear<axis = 1>(p, s, z)
            y = DequantizeLinear<axis = 1>(q, s, z) }""",
        s=np.asarray(0.013, np.float32),
        z=np.zeros((), np.int8),
    )
    lowered = lab.check(model, passes.quantize_early, image(rng, 1, 2, 6, 6))
    assert lab.order(lowered)[1] == "MaxPool"


RESIDUAL = """(float[1,2,7,7] x) => (float[1,3,4,4] y, float[1,3,4,4] y2) {
    r = Relu(x)
    a = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(r, w3)
    b = Relu(a)
    c = Conv<kernel_shape = [1,1]>(b, w1)
    s = Add(c, r)
    t = Relu(s)
    q = QuantizeLinear<axis = 1>(t, sc, z)
    d = DequantizeLinear<axis = 1>(q, sc, z)
    y = Conv<kernel_shape = [1,1], strides = [2,2]>(d, v1)
    y2 = Conv<kernel_shape = [1,1], strides = [STRIDE,STRIDE]>(d, v2) }"""


def residual_constants(rng):
    def weight(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return {
        "w3": weight(2, 2, 3, 3),
        "w1": weight(2, 2, 1, 1),
        "v1": weight(3, 2, 1, 1),
        "v2": weight(3, 2, 1, 1),
        "sc": np.asarray(0.05, np.float32),
        "z": np.zeros((), np.int8),
    }


def test_strides_move_to_producing_convolution(lab, rng):
    model = lab.build(RESIDUAL.replace("STRIDE", "2"), **residual_constants(rng))
    lowered = lab.check(model, passes.hoist_strides, image(rng, 1, 2, 7, 7), rtol=1e-6, atol=1e-6)
    strides = [
        list(n.attributes["strides"].value) for n in lowered.graph if "strides" in n.attributes
    ]
    convolutions = [n for n in lowered.graph if n.op_type == "Conv"]
    assert strides.count([2, 2]) == 2  # the 3x3 convolution and the residual's sampling
    assert list(convolutions[0].attributes["strides"].value) == [2, 2]
    assert lab.ops(lowered)["MaxPool"] == 1


def test_strides_stay_when_one_reader_needs_every_value(lab, rng):
    text = RESIDUAL.replace("STRIDE", "1").replace("float[1,3,4,4] y2", "float[1,3,7,7] y2")
    model = lab.build(text, **residual_constants(rng))
    lowered = lab.check(model, passes.hoist_strides, image(rng, 1, 2, 7, 7))
    assert lab.ops(lowered)["MaxPool"] == 0
