"""ResNet-50 in exported Q/DQ form without weight values: the golden graph."""

from __future__ import annotations

from typing import Literal

from onnx_graphs import GraphBuilder

Placement = Literal["conv-only", "all-add-inputs", "residual"]

_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))


def resnet50(placement: Placement = "residual", *, size: int = 224) -> GraphBuilder:
    """Build the graph with one tutorial placement of the Adds' quantizers.

    The tutorial has three.

    ``"conv-only"`` quantizes the inputs of weighted layers and pools, ``"all-add-inputs"`` both
    operands of every Add as well, ``"residual"`` the operand that is no convolution's branch.
    """
    g = GraphBuilder()
    x = g.input("image", ("batch", 3, size, size))
    y = g.op(
        "Relu",
        [g.conv(g.qdq(x, name="image_quantizer"), 3, 64, 7, name="conv1_conv", strides=[2, 2])],
        "relu1/Relu",
    )
    y = g.op("MaxPool", [y], "pool1/MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    quantized = g.qdq(y, name="pool1_quantizer")
    for stage, (width, blocks) in enumerate(_STAGES, start=2):
        for block in range(1, blocks + 1):
            name = f"conv{stage}_block{block}"
            stride = 2 if stage > 2 and block == 1 else 1
            y = _block(
                g, y, quantized, channels, width, name, stride, placement, project=block == 1
            )
            channels = 4 * width
            quantized = g.qdq(y, name=f"{name}_out_quantizer")
    pooled = g.op("GlobalAveragePool", [quantized], "quant_avg_pool/GlobalAveragePool")
    flat = g.op("Flatten", [pooled], "avg_pool_flatten/Flatten")
    logits = g.dense(g.qdq(flat, name="avg_pool_quantizer"), channels, 1000, name="predictions")
    bias = g.op("Add", [logits, g.const([0.0] * 1000)], "quant_predictions/BiasAdd")
    g.output(g.op("Softmax", [bias], "predictions/Softmax"))
    return g


def _block(
    g: GraphBuilder,
    x: str,
    quantized: str,
    channels: int,
    width: int,
    name: str,
    stride: int,
    placement: Placement,
    *,
    project: bool,
) -> str:
    shortcut = x
    if project:
        shortcut = g.conv(
            quantized, channels, 4 * width, 1, name=f"{name}_0_conv", strides=[stride] * 2
        )
    y = g.op(
        "Relu", [g.conv(quantized, channels, width, 1, name=f"{name}_1_conv", strides=[stride] * 2)]
    )
    y = g.op("Relu", [g.conv(g.qdq(y), width, width, 3, name=f"{name}_2_conv")])
    y = g.conv(g.qdq(y), width, 4 * width, 1, name=f"{name}_3_conv")
    if placement != "conv-only":
        shortcut = g.qdq(shortcut, name=f"{name}_0_conv_quantizer") if project else quantized
    if placement == "all-add-inputs":
        y = g.qdq(y, name=f"{name}_3_conv_quantizer")
    add = g.op("Add", [shortcut, y], f"{name}_add/Add")
    return g.op("Relu", [add], f"{name}_out/Relu")
