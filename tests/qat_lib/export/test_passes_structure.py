"""Constant folding, identities, Reshape targets, and Dense layers on images."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qat_lib.export import passes


def test_constants_are_computed_but_weight_qdq_stays(lab, rng):
    model = lab.build(
        """(float[2,3] x) => (float[2,4] y) {
            wide = Cast<to = 1>(half)
            bias = Squeeze(wide)
            q = QuantizeLinear<axis = 1>(w, s, z)
            dq = DequantizeLinear<axis = 1>(q, s, z)
            m = MatMul(x, dq)
            y = Add(m, bias) }""",
        half=rng.normal(size=(1, 4)).astype(np.float16),
        w=rng.normal(size=(3, 4)).astype(np.float32),
        s=np.full(4, 0.1, np.float32),
        z=np.zeros(4, np.int8),
    )
    lowered = lab.check(
        model, passes.fold_constants, {"x": rng.normal(size=(2, 3)).astype(np.float32)}
    )
    assert lab.order(lowered) == ["QuantizeLinear", "DequantizeLinear", "MatMul", "Add"]


def test_rare_operators_fold_but_random_ones_stay(lab, rng):
    model = lab.build(
        """(float[4] x) => (float[4] y) {
            c = Cos(w)
            r = RandomNormalLike(w)
            zero = Sub(r, r)
            a = Add(x, c)
            y = Add(a, zero) }""",
        w=rng.normal(size=4).astype(np.float32),
    )
    lowered = lab.check(model, passes.fold_constants, {"x": np.ones(4, np.float32)}, rtol=1e-6)
    assert lab.ops(lowered)["Cos"] == 0
    assert lab.ops(lowered)["RandomNormalLike"] == 1


def test_a_large_tile_is_not_written_out(lab):
    model = lab.build(
        "(float[1] x) => (float[1200000] y) { t = Tile(c, n)\n y = Add(x, t) }",
        c=np.ones(1, np.float32),
        n=np.asarray([1_200_000], np.int64),
    )
    assert lab.ops(passes.fold_constants(model))["Tile"] == 1


def test_operators_that_change_nothing_go(lab, rng):
    model = lab.build(
        """(float[2,3] x) => (float[2,3] y) {
            a = Identity(x)
            b = Cast<to = 1>(a)
            c = Transpose<perm = [0, 1]>(b)
            d = Pad(c, pads)
            e, mask = Dropout(d)
            y = Relu(e) }""",
        pads=np.zeros(4, np.int64),
    )
    lowered = lab.check(
        model, passes.remove_identities, {"x": rng.normal(size=(2, 3)).astype(np.float32)}
    )
    assert lab.order(lowered) == ["Relu"]


def test_an_identity_between_input_and_output_stays(lab):
    model = lab.build("(float[2] x) => (float[2] y) { y = Identity(x) }")
    assert lab.order(lab.check(model, passes.remove_identities, {"x": np.ones(2, np.float32)})) == [
        "Identity"
    ]


def test_reshape_with_one_open_axis_gets_a_constant_target(lab, rng):
    model = lab.build(
        """(float[N,4,5] x) => (float[N,20] y) {
            s = Shape(x)
            n = Gather(s, zero)
            t = Concat<axis = 0>(n, rest)
            y = Reshape(x, t) }""",
        zero=np.asarray([0], np.int64),
        rest=np.asarray([20], np.int64),
    )
    lowered = lab.check(
        model, passes.fix_reshape_targets, {"x": rng.normal(size=(3, 4, 5)).astype(np.float32)}
    )
    assert lab.order(lowered) == ["Reshape"]
    assert np.asarray(lowered.graph[0].inputs[1].const_value).tolist() == [-1, 20]


def test_reshape_with_two_open_axes_is_left_alone(lab, rng):
    model = lab.build(
        "(float[N,M,2] x) => (float[M,P] y) { s = Shape(x)\n t = Gather(s, i)\n y = Reshape(x, t) }",
        i=np.asarray([1, 0], np.int64),
    )
    assert lab.ops(passes.fix_reshape_targets(model))["Gather"] == 1


def test_dense_on_images_is_one_matmul(lab, rng):
    model = lab.build(
        """(float[N,4,4,3] x) => (float[N,4,4,5] y) {
            flat = Reshape(x, rows)
            m = MatMul(flat, w)
            y = Reshape(m, image) }""",
        rows=np.asarray([-1, 3], np.int64),
        image=np.asarray([-1, 4, 4, 5], np.int64),
        w=rng.normal(size=(3, 5)).astype(np.float32),
    )
    x = rng.normal(size=(2, 4, 4, 3)).astype(np.float32)
    assert lab.order(lab.check(model, passes.merge_batched_dense, {"x": x}, rtol=1e-6)) == [
        "MatMul"
    ]


def test_dense_after_a_reshape_that_regroups_stays(lab, rng):
    model = lab.build(
        """(float[2,4,6] x) => (float[2,8,5] y) {
            flat = Reshape(x, rows)
            m = MatMul(flat, w)
            y = Reshape(m, image) }""",
        rows=np.asarray([-1, 3], np.int64),
        image=np.asarray([2, 8, 5], np.int64),
        w=rng.normal(size=(3, 5)).astype(np.float32),
    )
    x = rng.normal(size=(2, 4, 6)).astype(np.float32)
    assert lab.ops(lab.check(model, passes.merge_batched_dense, {"x": x}))["Reshape"] == 2


def test_an_unsorted_model_comes_out_sorted(lab):
    model = lab.build(
        "(float[2] x) => (float[2] y) { a = Relu(x)\n b = Identity(a)\n y = Relu(b) }"
    )
    lowered = passes.remove_identities(model)
    assert isinstance(lowered, ir.Model)
    assert [n.outputs[0].name for n in lowered.graph][-1] == "y"


@pytest.mark.parametrize(("size", "target"), [(12, 5), (12, 24), (7, 3), (49, 48)])
def test_a_resize_gives_the_whole_size_that_was_meant(lab, rng, size, target):
    scale = np.float32(target / size)
    model = lab.build(
        f"""(float[1,2,{size},{size}] x) => (float y) {{
            y = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(x, , scales) }}""",
        scales=np.asarray([1, 1, scale, scale], np.float32),
    )
    lowered = passes.fix_resize_scales(model)
    lowered.graph.outputs[0].shape = None
    assert np.asarray(lowered.graph[0].inputs[2].const_value.numpy())[2] - scale < 1e-6
    proto = ir.to_proto(lowered)
    inferred = onnx.shape_inference.infer_shapes(proto).graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in inferred] == [1, 2, target, target]
