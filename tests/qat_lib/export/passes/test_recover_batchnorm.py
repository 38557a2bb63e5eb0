"""A BatchNormalization recovered from pieces of its own."""

import numpy as np
import pytest

from qat_lib.export import passes
from qat_lib.export.graph import BATCH_NORM, LAYER, BatchNorm


def random(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def pieces(lab, text, norm, inputs, **arrays):
    factor = norm.factor.astype(np.float32)
    offset = norm.offset.astype(np.float32)
    model = lab.formula(
        text,
        inputs,
        f=factor,
        o=offset,
        fi=factor[:, None, None],
        oi=offset[:, None, None],
        **arrays,
    )
    for node in model.graph:
        if node.op_type in ("Mul", "Add", "Sub"):
            node.meta[LAYER], node.meta[BATCH_NORM] = "_".join(("batch", "norm")), norm
    return model


THREE = BatchNorm(
    gamma=np.float32([1.5, -0.5, 2.0]),
    beta=np.float32([0.1, -0.2, 0.3]),
    mean=np.float32([0.5, 1.0, -1.5]),
    variance=np.float32([0.25, 1.0, 2.0]),
    epsilon=0.125,
)
ONE_NODE = (
    "BatchNormalization<epsilon = 0.125>"
    "({}, batch_norm/gamma, batch_norm/beta, batch_norm/mean, batch_norm/variance)"
)


@pytest.mark.parametrize(
    ("before", "data"),
    [
        ("Add(Mul(x, f), o)", "x"),
        ("Add(Mul(f, x), o)", "x"),
        ("Add(o, Mul(x, f))", "x"),
        ("Add(o, Mul(Relu(x), f))", "Relu(x)"),
        ("Add(Mul(image, fi), oi)", "image"),
        ("Add(oi, Mul(fi, image))", "image"),
        ("Add(Mul(x, fi), o)", None),
        ("Add(Mul(x, o), f)", None),
        ("Add(Mul(x, f), f)", None),
        ("Add(Mul(x, o), o)", None),
        ("Add(Mul(image, f), o)", None),  # along the width
        ("Sub(Mul(x, f), o)", None),
        ("Mul(Add(x, f), o)", None),
        ("Add(Mul(x, x), o)", None),
        ("Add(Mul(x, f), x)", None),
        ("m = Mul(x, f); Add(m, o); Relu(m)", None),
        ("m = Mul(x, f); m; Add(m, o)", None),
        ("Relu(Mul(x, f))", None),
    ],
)
def test_recover_batchnorm(lab, rng, before, data):
    arrays = {"x": random(rng, 2, 3), "image": random(rng, 2, 3, 4, 3)}
    inputs = {key: value for key, value in arrays.items() if key in before}
    model = pieces(lab, before, THREE, inputs)
    lowered = lab.check(model, passes.recover_batchnorm, inputs, rtol=1e-5, atol=1e-6)
    assert lab.results(lowered) == (lab.results(model) if data is None else [ONE_NODE.format(data)])
    if data is not None:
        found = lab.constants(lowered)
        assert found.keys() == {
            "batch_norm/gamma",
            "batch_norm/beta",
            "batch_norm/mean",
            "batch_norm/variance",
        }
        for key in ("gamma", "beta", "mean", "variance"):
            np.testing.assert_array_equal(found[f"batch_norm/{key}"], getattr(THREE, key))
            assert found[f"batch_norm/{key}"].dtype == np.float32


def test_recover_batchnorm_goes_on_behind_what_it_leaves(lab, rng):
    """Pieces without BatchNormalization, Add, common layer or matching numbers."""
    text = "Add(Mul(Add(Mul(Add(Mul(Relu(Mul(Relu(x), f)), f), o), o), f), f), o)"
    model = pieces(lab, text, THREE, {"x": random(rng, 2, 3)})
    lab.node(model, "Add").meta[LAYER] = "another"
    lowered = lab.check(
        model, passes.recover_batchnorm, {"x": random(rng, 2, 3)}, rtol=1e-5, atol=1e-5
    )
    assert lab.results(lowered) == [
        ONE_NODE.format("Add(Mul(Add(Mul(Relu(Mul(Relu(x), f)), f), o), o), f)")
    ]


def test_recover_batchnorm_needs_the_rank_and_the_layer(lab, rng):
    model = pieces(lab, "Add(Mul(Relu(x), f), o)", THREE, {"x": random(rng, 2, 3)})
    lab.node(model, "Relu").outputs[0].shape = None
    assert lab.ops(passes.recover_batchnorm(model))["BatchNormalization"] == 0
    model = pieces(lab, "Add(Mul(x, f), o)", THREE, {"x": random(rng, 2, 3)})
    for node in model.graph:
        del node.meta[BATCH_NORM]
    assert lab.ops(passes.recover_batchnorm(model))["BatchNormalization"] == 0


@pytest.mark.parametrize(
    ("factor", "offset", "found"),
    [
        (1.00009, 1.0, True),
        (1.00011, 1.0, False),
        (0.99989, 1.0, False),
        (1.0, 1.00009, True),
        (1.0, 1.00011, False),
        (1.0, 0.99989, False),
    ],
)
def test_recover_batchnorm_allows_for_rounding(lab, rng, factor, offset, found):
    """One part in ten thousand of the factor and offset terms."""
    norm = BatchNorm(
        gamma=np.float32([2, -4]),
        beta=np.float32([1, -3]),
        mean=np.float32([0.5, -0.75]),
        variance=np.float32([1, 4]),
        epsilon=0.0,
    )
    assert (norm.factor.tolist(), norm.offset.tolist()) == ([2, -2], [0, -4.5])
    text, inputs = "Add(Mul(x, a), b)", {"x": random(rng, 2, 2)}
    magnitude = np.asarray([2.0, 4.5])  # |beta| + |mean * factor|
    shifted = norm.offset + (offset - 1) * magnitude
    model = lab.formula(text, inputs, a=np.float32(norm.factor * factor), b=np.float32(shifted))
    for node in model.graph:
        node.meta[LAYER], node.meta[BATCH_NORM] = "bn", norm
    assert (lab.ops(passes.recover_batchnorm(model))["BatchNormalization"] == 1) == found


def test_recover_batchnorm_of_zeros(lab, rng):
    """A dead channel, of which nothing is left but zeros."""
    norm = BatchNorm(
        **{key: np.zeros(2, np.float32) for key in ("gamma", "beta", "mean")},
        variance=np.ones(2),
        epsilon=0.1,
    )
    model = pieces(lab, "Add(Mul(x, f), o)", norm, {"x": random(rng, 2, 2)})
    assert lab.order(passes.recover_batchnorm(model)) == ["BatchNormalization"]
