"""ONNX's shape inference, here or in a resource-limited process.

Time and memory are limited.
"""

from __future__ import annotations

import io
import resource
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from qat_lib.onnx_view import inference
from qat_lib.onnx_view.inference import infer, infer_in_child


def model_of(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_empty_tensor_value_info("y")
    return helper.make_model(
        helper.make_graph(nodes, "net", [x], [y]), opset_imports=[helper.make_opsetid("", 17)]
    )


def relu() -> onnx.ModelProto:
    return model_of(helper.make_node("Relu", ["x"], ["y"]))


def shape(model: onnx.ModelProto) -> list[int]:
    return [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]


def flipped() -> onnx.ModelProto:
    """A Reshape to the dimensions of its input, the other way round."""
    flip = [
        helper.make_node("Constant", [], [name], value_ints=[n]) for name, n in (("i", 1), ("j", 0))
    ]
    parts = [helper.make_node("Gather", ["s", index], [f"d{index}"]) for index in "ij"]
    size = helper.make_node("Concat", ["di", "dj"], ["size"], axis=0)
    reshape = helper.make_node("Reshape", ["x", "size"], ["y"])
    return model_of(*flip, helper.make_node("Shape", ["x"], ["s"]), *parts, size, reshape)


@pytest.mark.parametrize(("follow", "expected"), [(True, [3, 2]), (False, [])])
def test_infer_follows_values_if_asked(follow: bool, expected: list[int]) -> None:
    assert [size for size in shape(infer(flipped(), follow_values=follow)) if size] == expected


@pytest.mark.parametrize(
    "error",
    [
        OSError("no"),
        subprocess.TimeoutExpired("child", 12),
        subprocess.CalledProcessError(1, "child"),
        None,
    ],
)
def test_infer_in_child_gives_none_where_the_child_fails(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    def run(*_: Any, **__: Any) -> SimpleNamespace:
        if error is not None:
            raise error
        return SimpleNamespace(stdout=b"\x3a\x05")  # cut off

    monkeypatch.setattr(subprocess, "run", run)
    assert infer_in_child(relu()) is None


def test_the_child_limits_itself_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    answer = io.BytesIO()
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(
        sys, "stdin", SimpleNamespace(buffer=io.BytesIO(flipped().SerializeToString()))
    )
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=answer))
    inference._main()
    assert limits == {resource.RLIMIT_CPU: (3, 3), resource.RLIMIT_AS: (805_306_368, 805_306_368)}
    assert shape(onnx.ModelProto.FromString(answer.getvalue())) == [3, 2]
