"""Activation functions of the table of operations."""

from __future__ import annotations

from qat_lib.graph.roles.operation import Operation
from qat_lib.graph.roles.operation import operation as _op

ACTIVATIONS: tuple[Operation, ...] = (
    # Keras's relu6 is exported as a Clip, silu as Mul and Sigmoid, mish as Mul, Tanh and Softplus:
    # their rows have no ONNX operator. It is unknown whether a Mish node fuses into a kernel.
    _op(
        "activation, activation layer, epilogue, after add, gate, rectifier, non-negative, "
        "unary, pointwise",
        onnx="Relu",
        layers="ReLU",
        operators="Relu",
        functions="relu",
        modules="ReLU",
        torch="relu",
    ),
    _op("epilogue, after add, gate, rectifier, unary, pointwise, int8", onnx="Clip"),
    _op(
        "activation, epilogue, after add, non-negative",
        operators="Relu6",
        functions="relu6",
        modules="ReLU6",
        torch="relu6",
    ),
    _op(
        "activation, activation layer, epilogue, after add, unary, pointwise, int8",
        onnx="LeakyRelu",
        layers="LeakyReLU",
        operators="LeakyRelu",
        functions="leaky_relu",
        modules="LeakyReLU",
        torch="leaky_relu",
    ),
    _op(
        "activation layer, broadcasting, pointwise, int8",
        onnx="PRelu",
        layers="PReLU",
        modules="PReLU",
        torch="prelu",
    ),
    _op("activation layer", layers="Activation"),
    _op(
        "activation, activation layer, epilogue, unary, pointwise, float",
        onnx="Elu",
        layers="ELU",
        operators="Elu",
        functions="elu",
        modules="ELU",
        torch="elu",
    ),
    _op(
        "activation, epilogue, gated, unary, pointwise, float",
        onnx="Gelu",
        operators="Gelu",
        functions="gelu",
        modules="GELU",
        torch="gelu",
    ),
    _op(
        "activation, epilogue, gated",
        operators="Silu Mish",
        functions="silu mish",
        modules="SiLU Mish",
        torch="silu mish",
    ),
    _op(
        "unary, pointwise, float",
        onnx="Mish Selu Celu Softsign",
        modules="SELU CELU Softsign",
        torch="selu celu softsign",
    ),
    _op(
        "activation, epilogue, unary, pointwise, float",
        onnx="HardSwish",
        operators="HardSilu",
        functions="hard_silu",
        modules="Hardswish",
        torch="hardswish",
    ),
    _op(
        "activation, gate, non-negative, unary, pointwise, float",
        onnx="Sigmoid HardSigmoid Softplus",
        operators="Sigmoid HardSigmoid Softplus",
        functions="sigmoid hard_sigmoid softplus",
        modules="Sigmoid Hardsigmoid Softplus",
        torch="sigmoid hardsigmoid softplus",
    ),
    _op(
        "activation, gate, unary, pointwise, float",
        onnx="Tanh",
        operators="Tanh",
        functions="tanh",
        modules="Tanh",
        torch="tanh",
    ),
    _op(
        "gate, non-negative, unary, pointwise, float",
        onnx="Exp",
        operators="Exp",
        functions="exponential",
        torch="exp",
    ),
    _op(
        "non-negative, axis, float",
        onnx="Softmax",
        layers="Softmax",
        operators="Softmax",
        functions="softmax",
        modules="Softmax Softmax2d",
        torch="softmax",
    ),
    _op("axis, float", onnx="LogSoftmax", modules="LogSoftmax", torch="log_softmax"),
    _op("axis", onnx="Hardmax"),
)
