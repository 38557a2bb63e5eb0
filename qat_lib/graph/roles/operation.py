"""Row of the table of operations: names and possible roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Role: TypeAlias = Literal[
    "weighted",  # multiplies by weights in one kernel
    "convolution",
    "transposed",  # a transposed convolution
    "depthwise",  # a convolution of each channel by itself
    "product",  # multiplies two activations
    "attention",  # the products of attention and its projections, in one layer
    "affine",  # scales or shifts its one input by constants
    "integer",  # computes with integers; TensorRT imports none of these
    "integer weighted",  # of these, the ones with the weights as the second input
    "pair",  # quantizes or dequantizes
    "identity",  # gives its input unchanged at inference
    "range preserving",  # each output is a value of the input, or zero
    "layout",  # keeps every element and moves it
    "reshape",  # keeps every element and their order
    "unary",  # computes each element from one element of one input
    "broadcasting",  # computes each element from one element of each input
    "arithmetic",  # adds, subtracts, multiplies, divides or negates
    "merge",  # joins several tensors into one
    "activation",  # an activation function of a layer or a bare operator
    "activation layer",  # a layer that is an activation function
    "epilogue",  # applied by the kernel of a weighted layer before it writes
    "after add",  # stays in one kernel with an addition or a normalization in front of it
    "gated",  # a product of x and a function of x
    "gate",  # what may compute the function of x in such a product
    "rectifier",  # cuts at zero, where its bounds say so
    "non-negative",  # never below zero
    "sign preserving",  # not below zero where no input is; looked through by the search for signs
    "average pool",
    "max pool",
    "wide maximum",  # each output is the greatest of many values
    "normalization",  # computes its statistics at inference
    "reduction",
    "axis",  # works along the axis that an attribute names
    "pointwise",  # TensorRT joins runs of these into one kernel
    "int8",  # without weights, and with INT8 kernels where everything around it is INT8
    "float",  # always computes in floating point
    "random",
    "shape",  # gives the sizes of its input
    "growing",  # can be larger than all of its operands
    "loop",
    "control flow",
]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation with its names in each framework.

    Attributes:
        roles: roles of the operation.
        onnx: ONNX operators.
        layers: classes of ``keras.layers``.
        operators: classes of the bare operations that ``keras.ops`` leaves in a graph.
        functions: Keras activation functions.
        others: layer classes of model libraries, known by name only.
        tensorflow: TensorFlow operators.
        modules: classes of ``torch.nn``.
        torch: functions of ``torch`` and ``torch.nn.functional``, tensor methods and Python
            operators on tensors; names of in-place variants without the underscore.
    """

    roles: frozenset[Role]
    onnx: tuple[str, ...]
    layers: tuple[str, ...]
    operators: tuple[str, ...]
    functions: tuple[str, ...]
    others: tuple[str, ...]
    tensorflow: tuple[str, ...]
    modules: tuple[str, ...]
    torch: tuple[str, ...]


def operation(
    roles: str,
    *,
    onnx: str = "",
    layers: str = "",
    operators: str = "",
    functions: str = "",
    others: str = "",
    tensorflow: str = "",
    modules: str = "",
    torch: str = "",
) -> Operation:
    """Return a table row from comma-separated roles and space-separated names."""
    # A misspelt role raises KeyError at import.
    known: dict[str, Role] = {role: role for role in get_args(Role)}
    return Operation(
        roles=frozenset(known[role.strip()] for role in roles.split(",")),
        onnx=tuple(onnx.split()),
        layers=tuple(layers.split()),
        operators=tuple(operators.split()),
        functions=tuple(functions.split()),
        others=tuple(others.split()),
        tensorflow=tuple(tensorflow.split()),
        modules=tuple(modules.split()),
        torch=tuple(torch.split()),
    )
