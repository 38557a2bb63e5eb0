"""Float16 outside of INT8, preprocessing in the graph, channels-first input, canonical names."""

import numpy as np
import pytest

from qat_lib.errors import ExportError
from qat_lib.export import passes
from qat_lib.export.graph import LAYER, QUANTIZER
from qat_lib.preprocessing import Preprocessing


def test_what_is_not_int8_becomes_half(lab, rng):
    model = lab.build(
        """(float[1,2,5,5] x) => (float[1,3,3,3] y) {
            q = QuantizeLinear<axis = 1>(x, s, z)
            d = DequantizeLinear<axis = 1>(q, s, z)
            w = DequantizeLinear<axis = 0>(i, ws, wz)
            c = Conv<kernel_shape = [3,3]>(d, w, b)
            y = Relu(c) }""",
        opset=19,
        i=rng.integers(-127, 128, (3, 2, 3, 3)).astype(np.int8),
        ws=np.asarray([0.01, 1e-9, 0.02], np.float32),
        wz=np.zeros(3, np.int8),
        s=np.asarray(0.02, np.float32),
        z=np.zeros((), np.int8),
        b=rng.normal(size=3).astype(np.float32),
    )
    x = rng.normal(size=(1, 2, 5, 5)).astype(np.float32)
    expected = lab.run(model, x=x)[0]
    lowered = lab.check(model, passes.convert_float_to_half, {"x": x}, rtol=0.01, atol=0.02)
    np.testing.assert_allclose(lab.run(lowered, x=x)[0], expected, rtol=0.01, atol=0.02)
    assert lab.order(lowered)[0] == lab.order(lowered)[-1] == "Cast"
    scales = lab.node(lowered, "DequantizeLinear", 1).inputs[1].const_value.numpy()
    assert scales.dtype == np.float16
    assert scales[1] == np.float16(2.0**-24)
    assert lowered.graph.outputs[0].name == "y"


def test_large_constant_is_refused_bound_is_clamped(lab):
    model = lab.build(
        "(float[2] x) => (float[2] y) { y = Add(x, big) }",
        opset=19,
        big=np.asarray(1e6, np.float32),
    )
    with pytest.raises(ExportError, match="float16's range"):
        passes.convert_float_to_half(model)
    bound = lab.build(
        "(float[2] x) => (float[2] y) { y = Clip(x, low, big) }",
        opset=19,
        low=np.asarray(0, np.float32),
        big=np.asarray(1e6, np.float32),
    )
    assert lab.run(passes.convert_float_to_half(bound), x=np.asarray([-1, 7], np.float32))[
        0
    ].tolist() == [0, 7]


@pytest.mark.parametrize(
    ("operator", "expected"), [("Min(x, big)", [3, 4]), ("Where(mask, x, big)", [3, 65504])]
)
def test_masks_beyond_half_saturate(lab, operator, expected):
    constants = {"big": np.float32(1e38), "mask": np.asarray([1, 0], bool)}
    model = lab.build(f"(float[2] x) => (float[2] y) {{ y = {operator} }}", opset=19, **constants)
    half = passes.convert_float_to_half(model)
    assert lab.run(half, x=np.asarray([3, 4], np.float32))[0].tolist() == expected


@pytest.mark.parametrize("operands", ["large, switch", "switch, large"])
def test_half_additive_masks_stay_finite(lab, operands):
    model = lab.build(
        f"""(float[2] x, bool[2] hidden) => (float[2] y) {{
            switch = Cast<to = 1>(hidden)
            penalty = Mul({operands})
            y = Add(x, penalty) }}""",
        opset=19,
        large=np.float32(-2.4e38),
    )
    half = passes.convert_float_to_half(model)
    scores = lab.run(half, x=np.asarray([-32, -32], np.float32), hidden=np.asarray([True, False]))[
        0
    ]
    assert scores.tolist() == [-30032, -32]


@pytest.mark.parametrize("factor", [-65504.0, 40000.0, 3e4, 1.0])
def test_half_keeps_a_masks_factor_that_it_can_hold(lab, factor):
    model = lab.build(
        "(bool[2] on) => (float[2] y) {\n switch = Cast<to = 1>(on)\n y = Mul(switch, factor) }",
        opset=19,
        factor=np.float32(factor),
    )
    half = passes.convert_float_to_half(model)
    assert lab.run(half, on=np.asarray([True, False]))[0].tolist() == [factor, 0]


def test_half_other_products_with_large_constants_are_refused(lab):
    model = lab.build(
        "(float[2] x) => (float[2] y) { y = Mul(x, large) }", opset=19, large=np.float32(-2.4e38)
    )
    with pytest.raises(ExportError, match="float16's range"):
        passes.convert_float_to_half(model)


def conv_on_nhwc(lab, rng):
    return lab.build(
        """(float[N,4,6,3] x) => (float[N,2,2,4] y) {
            t = Transpose<perm = [0,3,1,2]>(x)
            y = Conv<kernel_shape = [3,3]>(t, w) }""",
        w=rng.normal(size=(2, 3, 3, 3)).astype(np.float32),
    )


def test_raw_images_go_through_the_same_arithmetic_as_numpy(lab, rng):
    preprocessing = Preprocessing(image_shape=(4, 6, 3), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    model = conv_on_nhwc(lab, rng)
    raw = rng.integers(0, 256, (2, 4, 6, 3)).astype(np.uint8)
    expected = lab.run(model, x=preprocessing.apply(raw))[0]
    embedded = passes.embed_preprocessing(model, preprocessing)
    np.testing.assert_array_equal(lab.run(embedded, x=raw)[0], expected)
    # The Transpose then goes to the raw image, where a channels-first input takes it off.
    first = passes.convert_inputs_to_nchw(passes.remove_transposes(embedded))
    assert lab.ops(first)["Transpose"] == 0
    np.testing.assert_array_equal(
        lab.run(first, x=np.ascontiguousarray(raw.transpose(0, 3, 1, 2)))[0], expected
    )


def test_preprocessing_for_another_image_is_refused(lab, rng):
    with pytest.raises(ExportError, match="input shape"):
        passes.embed_preprocessing(conv_on_nhwc(lab, rng), Preprocessing(image_shape=(8, 8, 1)))


def test_a_float_image_without_scaling_needs_no_node(lab, rng):
    plain = Preprocessing(image_shape=(4, 6, 3), dtype="float32", scale=1.0)
    model = conv_on_nhwc(lab, rng)
    assert lab.order(passes.embed_preprocessing(model, plain)) == lab.order(model)


def test_channels_first_input_keeps_other_readers_right(lab, rng):
    model = lab.build(
        """(float[N,4,6,3] x) => (float[N,2,2,4] y, float[N,4,6,3] z) {
            t = Transpose<perm = [0,3,1,2]>(x)
            y = Conv<kernel_shape = [3,3]>(t, w)
            z = Relu(x) }""",
        w=rng.normal(size=(2, 3, 3, 3)).astype(np.float32),
    )
    x = rng.normal(size=(2, 4, 6, 3)).astype(np.float32)
    first = passes.convert_inputs_to_nchw(model)
    for want, got in zip(
        lab.run(model, x=x),
        lab.run(first, x=np.ascontiguousarray(x.transpose(0, 3, 1, 2))),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


def test_names_say_layer_and_quantizer_and_are_unique(lab, rng):
    model = lab.build(
        """(float[1,2,4,4] image) => (float[1,2,2,2] probs) {
            q = QuantizeLinear<axis = 1>(image, s, z)
            d = DequantizeLinear<axis = 1>(q, s, z)
            a = Relu(d)
            b = Relu(a)
            probs = Conv<kernel_shape = [3,3]>(b, w, bias) }""",
        s=np.asarray(0.1, np.float32),
        z=np.zeros((), np.int8),
        w=rng.normal(size=(2, 2, 3, 3)).astype(np.float32),
        bias=np.zeros(2, np.float32),
    )
    for node in model.graph:
        node.meta[LAYER] = "quant_conv1"
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.meta[QUANTIZER] = "image_quantizer"
    named = lab.check(
        model, passes.name_canonically, {"image": rng.normal(size=(1, 2, 4, 4)).astype(np.float32)}
    )
    assert [node.name for node in named.graph] == [
        "image_quantizer/QuantizeLinear",
        "image_quantizer/DequantizeLinear",
        "quant_conv1/Relu",
        "quant_conv1/Relu_1",
        "quant_conv1/Conv",
    ]
    assert {"quant_conv1/weight", "quant_conv1/bias", "image_quantizer/scale"} <= set(
        named.graph.initializers
    )
    assert [v.name for v in (*named.graph.inputs, *named.graph.outputs)] == ["image", "probs"]
    again = passes.name_canonically(named)
    assert [node.name for node in again.graph] == [node.name for node in named.graph]
