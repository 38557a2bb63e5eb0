"""ONNX's shape inference: here, or in a process whose time and memory are limited."""

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
    return helper.make_model(helper.make_graph(nodes, "net", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])


def relu() -> onnx.ModelProto:
    return model_of(helper.make_node("Relu", ["x"], ["y"]))


def shape(model: onnx.ModelProto) -> list[int]:
    return [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]


@pytest.mark.parametrize(("follow", "expected"), [(True, [3, 2]), (False, [])])
def test_infer_follows_values_if_asked(follow: bool, expected: list[int]) -> None:
    """A Reshape to the dimensions of its input, the other way round."""
    flip = [helper.make_node("Constant", [], [name], value_ints=[int(n)]) for name, n in (("i", 1), ("j", 0))]
    parts = [helper.make_node("Gather", ["s", index], [f"d{index}"]) for index in "ij"]
    size = helper.make_node("Concat", ["di", "dj"], ["size"], axis=0)
    nodes = [*flip, helper.make_node("Shape", ["x"], ["s"]), *parts, size]
    found = infer(model_of(*nodes, helper.make_node("Reshape", ["x", "size"], ["y"])), follow_values=follow)
    assert [size for size in shape(found) if size] == expected


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError, onnx.shape_inference.InferenceError, None])
def test_infer_returns_the_model_where_the_inference_fails(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    def fail(*_: Any, **__: Any) -> onnx.ModelProto:
        raise error("no") if error is not None else KeyboardInterrupt

    model = relu()
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    if error is None:
        with pytest.raises(KeyboardInterrupt):
            infer(model, follow_values=True)
    else:
        assert infer(model, follow_values=True) is model


def test_infer_goes_on_behind_a_contradiction() -> None:
    """Operators of the wrong types are the reader's business; the rest still gets its shape."""
    nodes = [helper.make_node("MatMul", ["x", "x"], ["m"]), helper.make_node("Relu", ["x"], ["y"])]
    assert shape(infer(model_of(*nodes), follow_values=True)) == [2, 3]


def test_the_child_has_less_memory_and_time_than_a_hostile_file_would_take() -> None:
    assert (inference.MAX_CHILD_BYTES, inference.MAX_CHILD_SECONDS) == (805_306_368, 3)


def test_infer_in_child_asks_a_process_of_this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        asked.update(options, command=command)
        answer = infer(onnx.ModelProto.FromString(options["input"]), follow_values=True)
        return SimpleNamespace(stdout=answer.SerializeToString())

    monkeypatch.setattr(subprocess, "run", run)
    found = infer_in_child(relu())
    assert found is not None
    assert shape(found) == [2, 3]
    assert asked["command"] == [sys.executable, "-m", "qat_lib.onnx_view.inference"]
    assert (asked["timeout"], asked["check"]) == (12, True)


@pytest.mark.parametrize(
    "error", [OSError("no"), subprocess.TimeoutExpired("child", 12), subprocess.CalledProcessError(1, "child"), None]
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
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(relu().SerializeToString())))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=answer))
    inference._main()
    assert limits == {resource.RLIMIT_CPU: (3, 3), resource.RLIMIT_AS: (805_306_368, 805_306_368)}
    assert shape(onnx.ModelProto.FromString(answer.getvalue())) == [2, 3]
