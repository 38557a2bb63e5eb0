"""Verification of small graphs, without TensorFlow: what a plan says against what the file holds."""

from pathlib import Path

import onnx
import pytest

from qat_lib.export import verify_onnx
from qat_lib.plan import QuantizationPlan, QuantizerEntry

PLAN = QuantizationPlan(
    model="net",
    mode="full",
    quantizers=(QuantizerEntry(name="x_quantizer", kind="activation", tensor="x", consumers=()),),
    skipped=(),
)
PAIR = "q = QuantizeLinear (x, scale, zero) y = DequantizeLinear (q, scale, zero)"


def write(path: Path, nodes: str, outputs: str = "float[1,4] y") -> Path:
    """Write a graph of one input ``x``; its quantization nodes are named after the quantizer of the plan."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> net (float[1,4] x) => ({outputs})
        <float scale = {{0.5}}, int8 zero = {{0}}> {{ {nodes} }}"""
    proto = onnx.parser.parse_model(text)
    for node in proto.graph.node:
        node.name = f"x_quantizer/{node.op_type}"
    onnx.save(proto, path)
    return path


def codes(path: Path) -> list[str]:
    return sorted(finding.code for finding in verify_onnx(path, PLAN) if finding.code.startswith("Q"))


def test_verify_accepts_a_pair_of_the_plan(tmp_path: Path) -> None:
    assert codes(write(tmp_path / "pair.onnx", PAIR)) == []


def test_verify_finds_integers_that_leave_the_graph(tmp_path: Path) -> None:
    """The pair is whole and its one reader a DequantizeLinear, but the integers are an output as well."""
    path = write(tmp_path / "output.onnx", PAIR, "float[1,4] y, int8[1,4] q")
    assert codes(path) == ["Q05"]


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (f"{PAIR} z = Identity(q)", "float[1,4] y, int8[1,4] z"),
        ("q = QuantizeLinear (x, scale, zero) y = Identity(x)", "float[1,4] y"),
    ],
    ids=["another reader", "no reader"],
)
def test_verify_finds_a_quantizer_without_its_partner(tmp_path: Path, nodes: str, outputs: str) -> None:
    assert "Q05" in codes(write(tmp_path / "alone.onnx", nodes, outputs))
