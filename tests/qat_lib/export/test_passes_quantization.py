"""Activation ranges, integer weights in consumer layout, float weights, UINT8.

Float weights are FP32 + Q + DQ.
"""

import numpy as np
import pytest

from qat_lib.errors import ExportError
from qat_lib.export import passes
from qat_lib.export.graph import FACTOR, LEARNED, ORIGINAL, QUANTIZER
from qat_lib.export.ranges import LearnedRange


def mark(model, **names):
    """Mark each pair's quantizer: output of the DQ -> name."""
    for node in model.graph:
        if node.op_type == "DequantizeLinear":
            name = names[node.outputs[0].name]
            node.meta[QUANTIZER] = node.inputs[0].producer().meta[QUANTIZER] = name
    return model


def activation(name, amax):
    return LearnedRange(name=name, amax=np.asarray(amax, np.float32))


UNSET = {"one": np.asarray(1, np.float32), "zero": np.zeros((), np.int8)}


def test_activation_pairs_get_the_learned_scale_in_canonical_form(lab):
    model = lab.build(
        "(float[N,4] x) => (float[N,4] y) { q = QuantizeLinear(x, one, zero)\n y = DequantizeLinear(q, one, zero) }",
        **UNSET,
    )
    amax = np.float32(3.3)
    lowered = passes.write_activation_ranges(mark(model, y="a"), {"a": activation("a", amax)})
    for op in ("QuantizeLinear", "DequantizeLinear"):
        node = lab.node(lowered, op)
        scale, zero_point = (np.asarray(v.const_value.numpy()) for v in node.inputs[1:])
        assert scale.shape == ()
        assert scale == amax / np.float32(127)
        assert zero_point.dtype == np.int8
        assert "axis" in node.attributes
    x = np.asarray([[-9, -3.3, 0.0131, 9]], np.float32)
    expected = np.clip(np.rint(x / scale), -128, 127) * scale
    np.testing.assert_array_equal(lab.run(lowered, x=x)[0], expected)


def test_activations_of_other_widths_are_refused(lab):
    model = lab.build(
        "(float[N,4] x) => (float[N,4] y) { q = QuantizeLinear(x, one, zero)\n y = DequantizeLinear(q, one, zero) }",
        **UNSET,
    )
    narrow = LearnedRange(name="a", amax=np.float32(1), num_bits=4)
    with pytest.raises(ExportError, match=r"8 bits for activations. Received: 'a' with 4"):
        passes.write_activation_ranges(mark(model, y="a"), {"a": narrow})


def test_equal_pairs_on_one_tensor_become_one(lab):
    model = lab.build(
        """(float[N,4] x) => (float[N,4] y) {
            q1 = QuantizeLinear(x, one, zero)
            a = DequantizeLinear(q1, one, zero)
            q2 = QuantizeLinear(x, one, zero)
            b = DequantizeLinear(q2, one, zero)
            y = Add(a, b) }""",
        **UNSET,
    )
    lowered = passes.write_activation_ranges(mark(model, a="t", b="t"), {"t": activation("t", 2.0)})
    assert lab.ops(lowered)["QuantizeLinear"] == 1


def test_like_named_quantizers_are_told_apart(lab):
    model = lab.build(
        "(float[N,4] x) => (float[N,4] y) { q = QuantizeLinear(x, one, zero)\n y = DequantizeLinear(q, one, zero) }",
        **UNSET,
    )
    ranges = {"t": activation("t", 2.0), "t_1": activation("t_1", 127.0)}
    lowered = passes.write_activation_ranges(mark(model, y="t_1"), ranges)
    assert lab.node(lowered, "QuantizeLinear").inputs[1].const_value.numpy() == 1.0


@pytest.mark.parametrize(
    ("name", "ranges", "message"),
    [
        ("lost", {"a": 1.0}, "known quantizer"),
        ("a", {"a": [1.0, 2.0]}, "one range for the activation"),
    ],
)
def test_a_pair_without_a_usable_range_is_refused(lab, name, ranges, message):
    model = lab.build(
        "(float[N,2] x) => (float[N,2] y) { q = QuantizeLinear(x, one, zero)\n y = DequantizeLinear(q, one, zero) }",
        **UNSET,
    )
    known = {key: activation(key, value) for key, value in ranges.items()}
    with pytest.raises(ExportError, match=message):
        passes.write_activation_ranges(mark(model, y=name), known)


CASES = {
    # Keras layout of the weight, axes that keep a range, ONNX text behind the DQ, input, expected
    # axis
    "conv": (
        (3, 3, 2, 4),
        (3,),
        "t = Transpose<perm=[3,2,0,1]>(d)\n y = Conv<kernel_shape=[3,3]>(x, t)",
        (1, 2, 5, 5),
        0,
    ),
    "depthwise": (
        (3, 3, 2, 3),
        (2, 3),
        "r = Reshape(d, s)\n t = Transpose<perm=[3,2,0,1]>(r)\n y = Conv<kernel_shape=[3,3], group=2>(x, t)",
        (1, 2, 5, 5),
        0,
    ),
    "transposed": (
        (2, 2, 4, 3),
        (2,),
        "t = Transpose<perm=[3,2,0,1]>(d)\n y = ConvTranspose<kernel_shape=[2,2]>(x, t)",
        (1, 3, 4, 4),
        1,
    ),
    "dense": ((3, 4), (1,), "y = MatMul(x, d)", (2, 3), 1),
    "shared by two layouts": (
        (4, 4),
        (1,),
        "t = Transpose<perm=[1,0]>(d)\n a = MatMul(x, d)\n y = MatMul(a, t)",
        (2, 4),
        1,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_become_integers_in_the_consumers_layout(lab, rng, case):
    shape, kept, text, input_shape, axis = CASES[case]
    weight = rng.normal(size=shape).astype(np.float32)
    axes = tuple(i for i in range(len(shape)) if i not in kept)
    learned = LearnedRange(name="w", amax=np.abs(weight).max(axis=axes, keepdims=True), narrow=True)
    dims = ",".join(map(str, input_shape))
    model = lab.build(
        f"""(float[{dims}] x) => (float y) {{
            q = QuantizeLinear(w, one, zero)
            d = DequantizeLinear(q, one, zero)
            {text} }}""",
        w=weight,
        s=np.asarray([3, 3, 1, 6], np.int64),
        **UNSET,
    )
    lowered = passes.store_quantized_weights(mark(model, d="w"), {"w": learned})
    assert not {"QuantizeLinear", "Transpose", "Reshape"} & set(lab.ops(lowered))
    node = lab.node(lowered, "DequantizeLinear")
    assert node.inputs[0].const_value.numpy().dtype == np.int8
    assert node.attributes["axis"].value == axis
    # The reference: the Keras fake quantization of the weight, in float, through the same layout
    # operators.
    fake = learned.integers(weight).astype(np.float32) * learned.scale
    reference = lab.build(
        f"(float[{dims}] x) => (float y) {{ d = Identity(w)\n {text} }}",
        w=fake,
        s=np.asarray([3, 3, 1, 6], np.int64),
    )
    x = rng.normal(size=input_shape).astype(np.float32)
    np.testing.assert_array_equal(lab.run(lowered, x=x)[0], lab.run(reference, x=x)[0])


def test_scales_along_two_axes_of_one_weight_are_refused(lab, rng):
    model = lab.build(
        """(float[2,3] x) => (float[2,4] y) {
            q = QuantizeLinear(w, one, zero)
            d = DequantizeLinear(q, one, zero)
            y = MatMul(x, d) }""",
        w=rng.normal(size=(3, 4)).astype(np.float32),
        **UNSET,
    )
    learned = LearnedRange(name="w", amax=rng.uniform(1, 2, (3, 4)).astype(np.float32), narrow=True)
    with pytest.raises(ExportError, match="along one axis"):
        passes.store_quantized_weights(mark(model, d="w"), {"w": learned})


def test_integers_round_half_even_in_narrow_range():
    learned = LearnedRange(name="w", amax=np.asarray(127, np.float32), narrow=True)
    values = np.asarray([-128, -127.5, -0.5, 0.5, 1.5, 2.5, 127.4, 500], np.float32)
    assert learned.integers(values).tolist() == [-127, -127, 0, 0, 2, 2, 127, 127]
    wide = LearnedRange(name="a", amax=np.asarray(127, np.float32))
    assert wide.integers(np.asarray([-500, -128.0], np.float32)).tolist() == [-128, -128]


def int8_conv(lab, rng, **more):
    return lab.build(
        """(float[1,2,5,5] x) => (float[1,4,3,3] y) {
            w = DequantizeLinear<axis = 0>(i, s, z)
            y = Conv<kernel_shape = [3,3]>(x, w) }""",
        i=rng.integers(-127, 128, (4, 2, 3, 3)).astype(np.int8),
        s=rng.uniform(1e-3, 0.1, 4).astype(np.float32),
        z=np.zeros(4, np.int8),
        **more,
    )


def test_float_weights_quantize_to_the_same_integers(lab, rng):
    model = int8_conv(lab, rng)
    lab.node(model, "DequantizeLinear").meta.update(
        {QUANTIZER: "w", FACTOR: None, LEARNED: None, ORIGINAL: None},
    )
    lowered = lab.check(
        model, passes.store_float_weights, {"x": rng.normal(size=(1, 2, 5, 5)).astype(np.float32)}
    )
    assert lab.order(lowered) == ["QuantizeLinear", "DequantizeLinear", "Conv"]
    quantize = lab.node(lowered, "QuantizeLinear")
    assert quantize.inputs[0].const_value.numpy().dtype == np.float32
    assert quantize.meta[QUANTIZER] == "w"


@pytest.mark.parametrize(("before", "kept"), [("Relu", False), ("Sigmoid", True), ("Clip", False)])
def test_tensors_that_are_never_negative_become_uint8(lab, rng, before, kept):
    call = "Clip(x, low, high)" if before == "Clip" else f"{before}(x)"
    model = lab.build(
        f"""(float[1,4] x) => (float[1,4] y) {{
            a = {call}
            q = QuantizeLinear<axis = 1>(a, s, z)
            y = DequantizeLinear<axis = 1>(q, s, z) }}""",
        s=np.asarray(1 / 127, np.float32),
        z=np.zeros((), np.int8),
        low=np.asarray(0, np.float32),
        high=np.asarray(6, np.float32),
    )
    lowered = lab.check(
        model, passes.quantize_unsigned, {"x": np.asarray([[-1, 0.3, 0.9999, 700]], np.float32)}
    )
    assert lab.node(lowered, "QuantizeLinear").inputs[2].const_value.numpy().dtype == np.uint8
    assert (lab.ops(lowered)[before] > 0) == (kept or before == "Clip")
    assert lab.ops(lowered)["Clip"] == 1


def test_tensors_that_may_be_negative_stay_int8(lab, rng):
    model = lab.build(
        """(float[1,4] x) => (float[1,4] y) {
            r = Relu(x)
            a = Sub(r, x)
            q = QuantizeLinear<axis = 1>(a, s, z)
            y = DequantizeLinear<axis = 1>(q, s, z) }""",
        s=np.asarray(1 / 127, np.float32),
        z=np.zeros((), np.int8),
    )
    lowered = lab.check(
        model, passes.quantize_unsigned, {"x": rng.normal(size=(1, 4)).astype(np.float32)}
    )
    assert lab.node(lowered, "QuantizeLinear").inputs[2].const_value.numpy().dtype == np.int8


SATURATING = """(float[1,4] x) => (float[1,4] y) {{
    a = {call}
    q = QuantizeLinear<axis = 1>(a, s, z)
    y = DequantizeLinear<axis = 1>(q, s, z) }}"""


@pytest.mark.parametrize(
    ("call", "top", "gone"),
    [("Relu(x)", 0.0, True), ("Clip(x, low, high)", 6.0, True), ("Clip(x, low, high)", 5.9, False)],
)
def test_an_unsigned_quantizer_clamps_by_itself(lab, rng, call, top, gone):
    model = lab.build(
        SATURATING.format(call=call),
        s=np.asarray(np.float32(6) / np.float32(255)),
        z=np.zeros((), np.uint8),
        low=np.asarray(0, np.float32),
        high=np.asarray(top, np.float32),
    )
    for x in ([-1, 0.3, 5.95, 700], [0, -0.0, 6, 5.99]):
        lowered = lab.check(
            model, passes.remove_redundant_bounds, {"x": np.asarray([x], np.float32)}
        )
    assert (lab.order(lowered)[0] == "QuantizeLinear") == gone


@pytest.mark.parametrize("change", ["signed", "another reader", "above zero"])
def test_a_clamp_that_something_else_needs_stays(lab, rng, change):
    text = SATURATING.format(call="Clip(x, low, high)")
    if change == "another reader":
        text = text.replace("(float[1,4] y)", "(float[1,4] y, float[1,4] w)").replace(
            "}", " w = Neg(a) }"
        )
    model = lab.build(
        text,
        s=np.asarray(1 / 255, np.float32),
        z=np.zeros((), np.int8 if change == "signed" else np.uint8),
        low=np.asarray(0.1 if change == "above zero" else 0, np.float32),
        high=np.asarray(6, np.float32),
    )
    lowered = lab.check(
        model, passes.remove_redundant_bounds, {"x": np.asarray([[-1, 0.05, 0.5, 7]], np.float32)}
    )
    assert "Clip" in lab.ops(lowered)
