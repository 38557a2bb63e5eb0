"""Model-local functions: their calls are replaced by their bodies, within limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from qat_lib.errors import ExportError
from qat_lib.onnx_view import functions
from qat_lib.onnx_view.functions import inline_functions

PATH = Path("model.onnx")


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, (2,))


def model_of(node: onnx.NodeProto, *, functions: list[onnx.FunctionProto]) -> onnx.ModelProto:
    graph = helper.make_graph([node], "net", [value("x")], [value("y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)


def message(model: onnx.ModelProto) -> str:
    with pytest.raises(ExportError, match=r"^Expected .*model\.onnx") as caught:
        inline_functions(PATH, model)
    return str(caught.value)


def with_functions(*bodies: list[str]) -> onnx.ModelProto:
    """A model that calls the first of several functions.

    Each is a chain of operators or of calls ("f1": the second).
    """
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    made = []
    for index, calls in enumerate(bodies):
        names = ["a", *(f"v{step}" for step in range(len(calls) - 1)), "b"]
        nodes = [
            helper.make_node(call, [source], [target], domain="" if call == "Relu" else "f")
            for call, source, target in zip(calls, names, names[1:], strict=False)
        ]
        made.append(helper.make_function("f", f"f{index}", ["a"], ["b"], nodes, opsets))
    call = helper.make_node("f0", ["x"], ["y"], domain="f")
    return model_of(call, functions=made)


def test_inline_functions_replaces_calls_of_functions() -> None:
    found = inline_functions(PATH, with_functions(["f1", "f1", "Relu"], ["Relu"]))
    assert [node.op_type for node in found.graph.node] == ["Relu"] * 3
    assert len(found.functions) == 0


@pytest.mark.parametrize("bodies", [(["f0"],), (["f1"], ["f0"]), (["Relu"], ["Relu", "f1"])])
def test_inline_functions_refuses_functions_that_call_themselves(bodies: Any) -> None:
    text = message(with_functions(*bodies))
    assert "Expected functions that end" in text
    assert "calls itself" in text


def test_inline_functions_counts_the_nodes_behind_the_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two calls of a three-operator function, and an operator beside them.

    One of the operators is in a branch.
    """
    branch = helper.make_graph([helper.make_node("Relu", ["a"], ["c"])], "branch", [], [value("c")])
    model = with_functions(["f1", "f1", "Relu"], ["Relu", "Relu"])
    chosen = helper.make_node("If", ["x"], ["z"], then_branch=branch)
    model.functions[1].node.append(chosen)
    monkeypatch.setattr(functions, "MAX_NODES", 2 * (2 + 2) + 1 - 1)
    assert "of at most 8 nodes" in (text := message(model))
    assert "with 9." in text
    monkeypatch.setattr(functions, "MAX_NODES", 9)
    monkeypatch.setattr(onnx.inliner, "inline_local_functions", lambda given: given)
    assert len(inline_functions(PATH, model).functions) == 2


@pytest.mark.parametrize(("length", "refused"), [(101, False), (102, True)])
def test_inline_functions_follows_so_many_functions_in_functions(
    length: int, refused: bool
) -> None:
    model = with_functions(*([f"f{index + 1}"] for index in range(length - 1)), ["Relu"])
    if refused:
        assert "Expected functions that end" in message(model)
    else:
        assert [node.op_type for node in inline_functions(PATH, model).graph.node] == ["Relu"]


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError])
def test_inline_functions_names_what_the_inliner_refuses(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(model: onnx.ModelProto) -> onnx.ModelProto:
        raise error("not that one")

    monkeypatch.setattr(onnx.inliner, "inline_local_functions", refuse)
    assert "functions that can be inlined" in message(with_functions(["Relu"]))
    without = model_of(helper.make_node("Relu", ["x"], ["y"]), functions=[])
    assert inline_functions(PATH, without) is without
