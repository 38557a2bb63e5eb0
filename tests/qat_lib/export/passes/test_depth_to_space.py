"""Reshape, Transpose and Reshape as one DepthToSpace, and what only looks like it."""

from typing import Any

import keras
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from graph_text import check_rewrite, ints
from keras import layers, ops

import qat_lib
from qat_lib.export.passes import merge_depth_to_space

IMAGE = "(float[2,3,5,8] x) => (float y)"
BODY = "a = Reshape(x, parts)\n t = Transpose<perm={perm}>(a)\n b = Reshape(t, joined)\n y = Exp(b)"
DONE = (
    "t = Transpose<perm=[0,3,1,2]>(x)\n d = DepthToSpace<blocksize=2, mode='DCR'>(t)\n"
    " b = Transpose<perm=[0,2,3,1]>(d)\n y = Exp(b)"
).replace("'", '"')
PERM = "[0,1,3,2,4,5]"
CONSTANTS = {"parts": ints(2, 3, 5, 2, 2, 2), "joined": ints(2, 6, 10, 2)}


def test_blocks_of_channels_become_pixels(lab: Any) -> None:
    check_rewrite(lab, merge_depth_to_space, IMAGE, BODY.format(perm=PERM), DONE, **CONSTANTS)


@pytest.mark.parametrize(
    ("perm", "parts", "joined"),
    [
        ("[0,1,2,3,4,5]", (2, 3, 5, 2, 2, 2), (2, 6, 10, 2)),
        (PERM, (2, 3, 5, 1, 4, 2), (2, 3, 20, 2)),
        (PERM, (2, 3, 5, 2, 2, 2), (2, 10, 6, 2)),
        (PERM, (2, 5, 3, 2, 2, 2), (2, 10, 6, 2)),
        (PERM, (2, 3, 5, 2, 2, 2), (2, 6, 5, 4)),
    ],
    ids=["order", "blocks", "joined sides", "sides", "channels"],
)
def test_other_moves_remain(lab: Any, perm: str, parts: Any, joined: Any) -> None:
    constants = {"parts": ints(*parts), "joined": ints(*joined)}
    check_rewrite(lab, merge_depth_to_space, IMAGE, BODY.format(perm=perm), **constants)


class Blocks(layers.Layer):
    """Depth to space as in super-resolution networks, with the sides of the image in any order."""

    def __init__(self, sides: tuple[int, int] = (1, 2), block: int = 2) -> None:
        super().__init__()
        self.sides, self.block = sides, block

    def call(self, x: Any) -> Any:
        shape, block = ops.shape(x), self.block
        first, second = (shape[axis] for axis in self.sides)
        x = ops.reshape(x, (shape[0], first, second, block, block, shape[3] // block**2))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        return ops.reshape(x, (shape[0], first * block, second * block, x.shape[5]))


@pytest.mark.parametrize(
    ("size", "sides", "merged"),
    [((6, 4), (1, 2), True), ((None, None), (1, 2), True), ((None, None), (2, 1), False)],
)
def test_layer_of_any_size(size: Any, sides: tuple[int, int], merged: bool, tmp_path: Any) -> None:
    x = keras.Input((*size, 3))
    y = Blocks(sides)(layers.Conv2D(8, 3, padding="same")(x))
    model = keras.Model(x, layers.Conv2D(3, 3)(y))
    path = tmp_path / "model.onnx"
    qat_lib.export_onnx(model, path, target="openvino")
    ops_found = [node.op_type for node in ir.load(path).graph]
    assert ("DepthToSpace" in ops_found, "Reshape" in ops_found) == (merged, not merged)
    data = np.random.default_rng(0).normal(size=(2, 6, 4, 3)).astype(np.float32)
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: data})
    np.testing.assert_allclose(found, model(data), atol=1e-5)


def test_quantizer_moves_in_front(lab: Any, tmp_path: Any) -> None:
    x = keras.Input((6, 4, 3))
    y = Blocks()(layers.Conv2D(8, 3, padding="same")(x))
    model = qat_lib.quantize_model(keras.Model(x, layers.Conv2D(3, 3)(y)))
    data = np.random.default_rng(0).normal(size=(4, 6, 4, 3)).astype(np.float32)
    qat_lib.calibrate(model, data)
    path = tmp_path / "model.onnx"
    qat_lib.export_onnx(model, path, target="openvino")
    (moved,) = (node for node in ir.load(path).graph if node.op_type == "DepthToSpace")
    assert moved.inputs[0].producer().op_type == "DequantizeLinear"
    assert qat_lib.check_parity(model, path, data).passed
