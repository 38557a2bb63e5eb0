"""Graphs as text lines, to compare a pass's result with expectations."""

import itertools
import re

import numpy as np

from qat_lib.export.graph import constant, dims


def describe(model):
    """Return a line per required node; inner tensor names mean nothing.

    A node is required if an output needs it.
    """
    lines, numbers, named = (
        [],
        itertools.count(),
        {None: "-"} | {value: value.name for value in model.graph.inputs},
    )

    def name(value):
        if value not in named and (array := constant(value)) is not None:
            named[value] = f"{array.dtype}{list(array.shape)} {array.reshape(-1).tolist()}"
        elif value not in named:
            node = value.producer()
            inputs = [name(x) for x in node.inputs]
            for output in node.outputs:
                named[output] = f"v{next(numbers)}"
            types = ", ".join(f"{named[x]}: {x.dtype} {dims(x)}" for x in node.outputs)
            attributes = {key: node.attributes[key].value for key in sorted(node.attributes)}
            lines.append(f"{types} = {node.op_type}({', '.join(inputs)}) {attributes}")
        return named[value]

    outputs = [f"{output.name} = {name(output)}" for output in model.graph.outputs]
    return lines + outputs


def build(lab, text, constants, opset=17):
    """Return the graph with those of the constants that its text reads."""
    made = re.findall(r"(?:^|\{)\s*(\w+) =", text, re.MULTILINE)
    read = set(re.findall(r"\w+", text)) - set(made)
    return lab.build(
        text, opset=opset, **{name: value for name, value in constants.items() if name in read}
    )


def random_inputs(model):
    """Return random arrays for a model's float inputs; open sizes are 2."""
    rng = np.random.default_rng(3)
    shapes = {
        value.name: [2 if d is None else d for d in dims(value)] for value in model.graph.inputs
    }
    return {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}


def check_rewrite(
    lab, lowering, signature, before, after=None, *, opset=17, tolerance=1e-6, **constants
):
    """Check that a pass rewrites one graph body to another.

    Shapes included; both must compute the same. Without ``after`` the graph must stay as it is.
    Returns the rewritten model.
    """
    model = build(lab, f"{signature} {{ {before} }}", constants, opset)
    lowered = lowering(model)
    assert_same(
        lowered,
        build(lab, f"{signature} {{ {before if after is None else after} }}", constants, opset),
    )
    if after is not None:
        lab.check(model, lowering, random_inputs(model), rtol=tolerance, atol=tolerance)
    return lowered


def assert_same(received, expected):
    """Check that two graphs differ in inner tensor names at most.

    Nothing idle may be left.
    """
    lines, wanted = describe(received), describe(expected)
    assert lines == wanted, "\n".join(["expected:", *wanted, "received:", *lines])
    assert len(received.graph) == len(lines) - len(received.graph.outputs), (
        "a node is left that no output needs"
    )
    values = [
        *received.graph.inputs,
        *(output for node in received.graph for output in node.outputs),
    ]
    readers = [use.node for value in values for use in value.uses()]
    assert all(node.graph is received.graph for node in readers), (
        "a node that was removed still reads a tensor"
    )


def floats(*shape):
    """Return float32 numbers that are all different."""
    return (np.arange(np.prod(shape, dtype=int), dtype=np.float32) / 8 + 1).reshape(shape)


def ints(*values):
    """Return int64 numbers."""
    return np.asarray(values, np.int64)
