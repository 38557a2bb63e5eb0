"""The helpers that every lowering pass uses."""

import numpy as np
import onnx_ir as ir
import pytest

from qat_lib.export.graph import (
    BATCH_NORM,
    LAYER,
    QUANTIZER,
    TENSOR,
    BatchNorm,
    add_constant,
    attribute,
    constant,
    consumers,
    dims,
    drop_unused,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    only_consumer,
    operand,
    producer,
    rank,
    replace,
    scalar,
    set_int,
    set_ints,
)

X = {"x": np.float32([[1, 2, 3]])}


def test_batch_norm_is_a_factor_and_an_offset():
    norm = BatchNorm(
        gamma=np.float32([3, -8]),
        beta=np.float32([10, 20]),
        mean=np.float32([2, 5]),
        variance=np.float32([2, 15]),
        epsilon=0.25,
    )
    assert norm.factor.tolist() == [2, -8 / np.sqrt(15.25)]
    assert norm.offset.tolist() == [6, 20 + 5 * 8 / np.sqrt(15.25)]
    assert norm.factor.dtype == norm.offset.dtype == np.float64


def test_a_pass_leaves_its_argument_as_it_was(lab):
    @lowering_pass
    def halve(model, kind, *, name):
        """Say it in half."""
        for value in (
            *model.graph.inputs,
            *model.graph.initializers.values(),
            model.graph[0].outputs[0],
        ):
            value.dtype = kind
        model.graph[0].name = name

    model = lab.formula("Relu(Add(x, c))", X, c=np.float32([1]))
    lowered = halve(model, ir.DataType.FLOAT16, name="changed")
    for graph, kind, name in (
        (model.graph, "FLOAT", "node_0"),
        (lowered.graph, "FLOAT16", "changed"),
    ):
        values = (*graph.inputs, *graph.initializers.values(), graph[0].outputs[0])
        assert [value.dtype.name for value in values] == [kind] * 3
        assert graph[0].name == name
    assert (halve.__name__, halve.__doc__) == ("halve", "Say it in half.")


def test_a_pass_leaves_the_types_that_are_not_tensors(lab):
    model = lab.formula("Relu(x)", X)
    model.graph.inputs[0].type = sequence = ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
    assert lowering_pass(lambda model: None)(model).graph.inputs[0].type == sequence


def test_a_pass_sorts_and_clears_up(lab):
    @lowering_pass
    def rewire(model):
        exp, relu = model.graph
        exp.replace_input_with(0, relu.outputs[0])

    model = lab.formula("Exp(x); Relu(x)", X)
    assert lab.order(rewire(model)) == ["Relu", "Exp"]

    @lowering_pass
    def cut(model):
        model.graph[-1].replace_input_with(0, model.graph.inputs[0])

    lowered = cut(lab.formula("Exp(Mul(Add(x, c), d))", X, c=np.float32([1]), d=np.float32([2])))
    assert lab.results(lowered) == ["Exp(x)"]
    assert len(lowered.graph) == 1
    assert lab.constants(lowered) == {}


def test_drop_unused_keeps_what_is_read_or_an_output(lab):
    text = """(float[4] x) => (float[2] c, float y, float z) {
        a, b = Split<axis = 0>(x)
        y = Relu(b)
        z = Add(b, d)
        e = Exp(z)
        f = Neg(e) }"""
    model = lab.build(text, c=np.float32([1, 2]), d=np.float32([3]), unread=np.float32([4]))
    drop_unused(model)
    assert lab.order(model) == ["Split", "Relu", "Add"]
    assert lab.constants(model).keys() == {"c", "d"}


@pytest.mark.parametrize(("domain", "standard"), [("", True), ("ai.onnx", True), ("custom", False)])
def test_is_op_means_the_standard_operators(domain, standard):
    node = ir.Node(domain, "Relu", [])
    assert is_op(node, "Relu") == standard
    assert is_op(node, "Exp", "Relu") == standard
    assert not is_op(node, "Exp")
    assert not is_op(node)
    assert not is_op(None, "Relu")


def test_operand_and_producer(lab):
    model = lab.formula("Clip(Exp(x), , c)", X, c=np.float32(1))
    exp, clip = model.graph
    assert operand(clip, 0) is exp.outputs[0]
    assert operand(clip, 1) is None
    assert operand(clip, 2) is model.graph.initializers["c"]
    assert operand(clip, 3) is operand(clip, 5) is None
    assert [producer(value) for value in (*clip.inputs, model.graph.inputs[0])] == [
        exp,
        None,
        None,
        None,
    ]


def test_constant_and_scalar(lab):
    arrays = {"a": np.float32([[4]]), "b": np.float32(5), "c": np.float32([6, 7])}
    model = lab.formula(
        "Add(Add(Exp(x), Constant<value_float = 3.0>()), a); Add(b, c)", X, **arrays
    )
    made = {node.op_type: node.outputs[0] for node in model.graph}
    assert constant(None) is constant(model.graph.inputs[0]) is constant(made["Exp"]) is None
    assert scalar(None) is scalar(model.graph.inputs[0]) is scalar(made["Exp"]) is None
    assert constant(made["Constant"]) == scalar(made["Constant"]) == 3
    assert [scalar(model.graph.initializers[name]) for name in "abc"] == [4, 5, None]
    assert type(scalar(model.graph.initializers["a"])) is float
    for name, array in arrays.items():
        np.testing.assert_array_equal(constant(model.graph.initializers[name]), array)
    model.graph.initializers["a"].const_value = None
    assert constant(model.graph.initializers["a"]) is None


def test_add_constant_makes_the_name_unique(lab):
    graph = lab.formula("Add(x, w)", X, w=np.float32([1])).graph
    made = [
        add_constant(graph, array, "w")
        for array in (np.int8([[1, 2]]), np.float32(3), np.arange(3))
    ]
    assert [value.name for value in made] == ["w_1", "w_2", "w_3"]
    assert add_constant(graph, np.float32(3), "v").name == "v"
    assert [value.dtype.name for value in made] == ["INT8", "FLOAT", "INT64"]
    assert [list(value.shape) for value in made] == [[1, 2], [], [3]]
    assert [graph.initializers[value.name] for value in made] == made
    np.testing.assert_array_equal(made[0].const_value.numpy(), [[1, 2]])


def test_attribute(lab):
    node = lab.formula(
        'Resize<axes = [2, 3], mode = "linear", cubic_coeff_a = -0.5>(x, , s)',
        X,
        opset=18,
        s=np.float32([1, 1]),
    ).graph[0]
    assert attribute(node, "axes") == [2, 3]
    assert attribute(node, "mode") == "linear"
    assert attribute(node, "cubic_coeff_a", 7) == -0.5
    assert attribute(node, "other") is None
    assert attribute(node, "other", 7) == 7


def test_set_int_and_set_ints():
    node = ir.node("Relu", [])
    set_int(node, "axis", np.int8(3))
    set_ints(node, "axes", np.arange(2, 5))
    assert (node.attributes["axis"].value, tuple(node.attributes["axes"].value)) == (3, (2, 3, 4))
    assert type(node.attributes["axis"].value) is type(node.attributes["axes"].value[0]) is int


def test_consumers_are_each_named_once(lab):
    model = lab.formula("Relu(x); Add(x, x); Exp(x)", X)
    assert consumers(model.graph.inputs[0]) == list(model.graph)
    assert consumers(model.graph[0].outputs[0]) == []


@pytest.mark.parametrize(
    ("text", "op_type"),
    [
        ("Relu(Exp(x))", "Relu"),
        ("Sub(x, Exp(x))", "Sub"),
        ("e = Exp(x); Relu(e); Neg(e)", None),
        ("e = Exp(x); Add(e, e)", None),
        ("e = Exp(x); e; Relu(e)", None),
        ("Exp(x)", None),
    ],
)
def test_only_consumer(lab, text, op_type):
    model = lab.formula(text, X)
    found = only_consumer(lab.node(model, "Exp").outputs[0])
    assert (None if found is None else found.op_type) == op_type


@pytest.mark.parametrize(
    ("shape", "sizes"), [((), []), ((3,), [3]), (("b", 4, None), [None, 4, None]), (None, None)]
)
def test_rank_and_dims(shape, sizes):
    value = ir.Value(shape=None if shape is None else ir.Shape(shape))
    assert dims(value) == sizes
    assert rank(value) == (None if sizes is None else len(sizes))
    assert rank(None) is dims(None) is None


def test_replace_moves_readers_and_identity(lab):
    model = lab.formula("Relu(Exp(x)); Neg(Abs(x))", X)
    exp, relu, absolute, _ = model.graph
    exp.outputs[0].meta[TENSOR] = "tensor"
    replace(exp.outputs[0], absolute.outputs[0])
    assert relu.inputs[0] is absolute.outputs[0]
    assert absolute.outputs[0].meta[TENSOR] == "tensor"
    assert lab.results(model) == ["Relu(Abs(x))", "Neg(Abs(x))"]
    replace(relu.outputs[0], absolute.outputs[0])  # of no tensor: the new one keeps its identity
    assert absolute.outputs[0].meta[TENSOR] == "tensor"


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        (None, None, ([1, 3], "FLOAT")),
        ([1, "n"], None, ([1, "n"], "FLOAT")),
        (None, ir.DataType.FLOAT16, ([1, 3], "FLOAT16")),
    ],
)
def test_replace_keeps_an_outputs_name_and_says_its_type(lab, shape, dtype, expected):
    model = lab.formula("r = Relu(Exp(x)); r; Neg(r)", X)
    _, relu, neg = model.graph
    name = relu.outputs[0].name
    node = ir.node("Abs", [model.graph.inputs[0]])
    node.outputs[0].shape = None if shape is None else ir.Shape(shape)
    node.outputs[0].dtype = dtype
    insert_before(relu, node)
    replace(relu.outputs[0], node.outputs[0])
    output = model.graph.outputs[0]
    assert output is neg.inputs[0] is node.outputs[0]
    assert output.name == name
    sizes = [dim if isinstance(dim, int) else dim.value for dim in output.shape]
    assert (sizes, output.dtype.name) == expected


def test_replace_names_open_dimensions_and_keeps_fixed_ones(lab):
    model = lab.formula("Relu(x)", X)
    (relu,) = model.graph
    relu.outputs[0].shape = ir.Shape(["batch", "width"])
    node = ir.node("Abs", [model.graph.inputs[0]])
    node.outputs[0].shape = ir.Shape([None, 3])
    insert_before(relu, node)
    replace(relu.outputs[0], node.outputs[0])
    batch, width = model.graph.outputs[0].shape
    assert (batch.value, width) == ("batch", 3)


def test_replace_of_an_output_of_unknown_type(lab):
    model = lab.formula("Relu(Exp(x))", X)
    exp, relu = model.graph
    relu.outputs[0].dtype = None
    replace(relu.outputs[0], exp.outputs[0])
    assert model.graph.outputs[0].dtype.name == "FLOAT"
    exp.outputs[0].dtype = None
    other = ir.node("Abs", [model.graph.inputs[0]])
    insert_before(exp, other)
    replace(exp.outputs[0], other.outputs[0])
    assert model.graph.outputs[0].dtype is None


def test_new_node_belongs_to_the_layer_of_its_origin():
    origin = ir.node("Mul", [])
    origin.meta.update({LAYER: "layer", BATCH_NORM: "norm", QUANTIZER: "q"})
    origin.outputs[0].dtype = ir.DataType.FLOAT
    origin.outputs[0].shape = ir.Shape([7])
    node = new_node("Add", [None], {"axis": 3}, origin=origin)
    assert (node.op_type, list(node.inputs), node.attributes["axis"].value) == ("Add", [None], 3)
    assert node.meta == {LAYER: "layer", BATCH_NORM: "norm"}
    assert (node.outputs[0].dtype.name, node.outputs[0].shape) == ("FLOAT", None)
    del origin.meta[BATCH_NORM]
    assert new_node("Add", [], origin=origin).meta == {LAYER: "layer"}


def test_new_node_takes_type_of_first_output():
    origin = ir.node("Dropout", [], num_outputs=2)
    origin.outputs[0].dtype, origin.outputs[1].dtype = ir.DataType.FLOAT, ir.DataType.BOOL
    assert new_node("Relu", [], origin=origin).outputs[0].dtype.name == "FLOAT"


@pytest.mark.parametrize("shape", [[1, "n", None], ir.Shape([1, "n", None])])
def test_new_node_says_shape_and_type(shape):
    output = new_node(
        "Add", [], origin=ir.node("Mul", []), shape=shape, dtype=ir.DataType.INT8
    ).outputs[0]
    assert output.shape == ir.Shape([1, "n", None])
    assert output.dtype.name == "INT8"
    assert new_node("Add", [], origin=ir.node("Mul", [])).outputs[0].dtype is None


def test_insert_before_returns_the_output(lab):
    model = lab.formula("Relu(Exp(x))", X)
    node = ir.node("Neg", [model.graph.inputs[0]])
    assert insert_before(model.graph[1], node) is node.outputs[0]
    assert lab.order(model) == ["Exp", "Neg", "Relu"]


def test_insert_before_needs_a_graph():
    with pytest.raises(TypeError, match="belongs to no graph"):
        insert_before(ir.node("Relu", []), ir.node("Neg", []))
