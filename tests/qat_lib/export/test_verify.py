"""Verification of small graphs against a plan, without TensorFlow."""

from pathlib import Path
from typing import Any

import onnx
import pytest

from qat_lib.analysis.findings import Finding
from qat_lib.core.plan import QuantizationPlan, QuantizerEntry
from qat_lib.export import verify_onnx
from qat_lib.export.metadata import Recorded

PLAN = QuantizationPlan(
    model="net",
    mode="full",
    quantizers=(QuantizerEntry(name="x_quantizer", kind="activation", tensor="x", consumers=()),),
    skipped=(),
)
PAIR = "q = QuantizeLinear (x, scale, zero) y = DequantizeLinear (q, scale, zero)"


def write(path: Path, nodes: str, outputs: str = "float[1,4] y") -> Path:
    """Write a graph of one input ``x``, with the plan's quantizer names."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> net (float[1,4] x) => ({outputs})
        <float scale = {{0.5}}, int8 zero = {{0}}> {{ {nodes} }}"""
    proto = onnx.parser.parse_model(text)
    for node in proto.graph.node:
        node.name = f"x_quantizer/{node.op_type}"
    onnx.save(proto, path)
    return path


def codes(path: Path) -> list[str]:
    return sorted(
        finding.code for finding in verify_onnx(path, PLAN) if finding.code.startswith("Q")
    )


def test_verify_accepts_a_pair_of_the_plan(tmp_path: Path) -> None:
    assert codes(write(tmp_path / "pair.onnx", PAIR)) == []


def test_verify_finds_integers_that_leave_the_graph(tmp_path: Path) -> None:
    """The pair is complete, but its integers are a graph output."""
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
def test_verify_finds_a_quantizer_without_its_partner(
    tmp_path: Path, nodes: str, outputs: str
) -> None:
    assert "Q05" in codes(write(tmp_path / "alone.onnx", nodes, outputs))


def test_verify_finds_an_operator_between_q_and_dq(tmp_path: Path) -> None:
    nodes = (
        "q = QuantizeLinear (x, scale, zero) r = Identity (q) y = DequantizeLinear (r, scale, zero)"
    )
    assert codes(write(tmp_path / "between.onnx", nodes)) == ["Q05", "Q05"]


def test_verify_takes_a_dequantizer_of_constants(tmp_path: Path) -> None:
    nodes = f"{PAIR} w = DequantizeLinear (zero, scale, zero)"
    assert codes(write(tmp_path / "weights.onnx", nodes)) == []


DEQUANTIZE = "x_quantizer/DequantizeLinear"
RECORD: dict[str, Any] = {
    "activations": {"x_quantizer": 0.5},
    "readers": {DEQUANTIZE: ("x_quantizer/Relu:0", "z:")},
    "unsigned": (),
}
READ = f"{PAIR.replace('y =', 'z =')} w = Relu (z)"


def verify(
    path: Path, plan: Any = None, *, nodes: str = READ, target: str = "tensorrt", **record: Any
) -> list[Finding]:
    """Verify a file whose DQ feeds a Relu and output ``z``."""
    path = write(path / "model.onnx", nodes, "float[1,4] z, float[1,4] w")
    proto = onnx.load(path)
    text = Recorded(**{**RECORD, **record}).to_json()
    for key, value in (("quantizers", text), ("target", target)):
        proto.metadata_props.add(key=f"qatline.{key}", value=value)
    onnx.save(proto, path)
    return verify_onnx(path, plan)


def said(found: list[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.code, finding.severity, finding.node) for finding in found]


def test_verify_accepts_the_recorded_readers(tmp_path: Path) -> None:
    assert verify(tmp_path) == []
    assert verify(tmp_path, PLAN) == []
    assert verify(tmp_path, readers=None) == []


@pytest.mark.parametrize(
    ("readers", "text"),
    [
        (("other:0", "x_quantizer/Relu:0", "z:"), "(lost: other:0; new: none)"),
        (("z:",), "(lost: none; new: x_quantizer/Relu:0)"),
        (("x_quantizer/Relu:1", "z:"), "(lost: x_quantizer/Relu:1; new: x_quantizer/Relu:0)"),
        ((), "(lost: none; new: x_quantizer/Relu:0, z:)"),
    ],
)
def test_verify_names_readers_that_are_lost_or_new(
    tmp_path: Path, readers: tuple[str, ...], text: str
) -> None:
    (found,) = verify(tmp_path, readers={DEQUANTIZE: readers})
    assert (found.code, found.node) == ("Q05", DEQUANTIZE)
    assert text in found.message


def test_verify_finds_foreign_dequantizer(tmp_path: Path) -> None:
    assert said(verify(tmp_path, readers={})) == [("Q02", "error", DEQUANTIZE)]


@pytest.mark.parametrize(
    ("planned", "record", "expected"),
    [
        (None, {}, []),
        (["x_quantizer"], {}, []),
        (["x_quantizer", "b"], {}, [("Q01", "error", "b")]),
        (["b"], {}, [("Q01", "error", "b"), ("Q02", "error", "x_quantizer")]),
        (None, {"activations": {"x_quantizer": 0.5, "b": 1.0}}, [("Q01", "error", "b")]),
        (
            None,
            {"activations": {}, "disabled": ("x_quantizer",)},
            [("Q02", "error", "x_quantizer")],
        ),
        (["x_quantizer", "b"], {"disabled": ("b",)}, [("Q01", "info", "b")]),
        (["x_quantizer"], {"disabled": ("b",)}, []),
        (["x_quantizer"], {"disabled": ("x_quantizer",)}, [("Q01", "info", "x_quantizer")]),
    ],
)
def test_verify_compares_the_quantizers_with_plan_and_record(
    tmp_path: Path,
    planned: list[str] | None,
    record: dict[str, Any],
    expected: list[tuple[str, str, str]],
) -> None:
    plan = None if planned is None else plan_of(*planned)
    assert said(verify(tmp_path, plan, **record)) == expected


def plan_of(*names: str) -> QuantizationPlan:
    entries = tuple(
        QuantizerEntry(name=name, kind="activation", tensor=name, consumers=()) for name in names
    )
    return QuantizationPlan(model="net", mode="full", quantizers=entries, skipped=())


def test_verify_ignores_the_record_of_a_floating_point_export(tmp_path: Path) -> None:
    assert verify(tmp_path, activations={}, readers={}) == []


def test_verify_checks_the_learned_scale(tmp_path: Path) -> None:
    found = verify(tmp_path, activations={"x_quantizer": 0.25})
    assert said(found) == [
        ("Q03", "error", f"x_quantizer/{op}") for op in ("QuantizeLinear", "DequantizeLinear")
    ]


@pytest.mark.parametrize("target", ["tensorrt", "openvino", "onnxruntime"])
def test_verify_goes_by_every_other_rule_for_each_target(tmp_path: Path, target: str) -> None:
    """A scale of zero (P2) is wrong everywhere."""
    nodes = f"none = Constant <value = float {{0}}> () {READ.replace('scale', 'none')}"
    assert "V01" in {f.code for f in verify(tmp_path, nodes=nodes, target=target)}


def test_verify_finds_a_dequantizer_of_an_input(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> net (int8[1,4] x) => (float[1,4] y)
        <float scale = {0.5}, int8 zero = {0}> { y = DequantizeLinear (x, scale, zero) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.node[0].name = DEQUANTIZE
    onnx.save(proto, tmp_path / "model.onnx")
    assert codes(tmp_path / "model.onnx") == ["Q05"]


@pytest.mark.parametrize(
    ("target", "expected"), [("tensorrt", {"V03"}), ("openvino", set()), ("onnxruntime", set())]
)
def test_verify_takes_uint8_for_what_the_target_takes(
    tmp_path: Path, target: str, expected: set[str]
) -> None:
    nodes = f"unsigned = Constant <value = uint8 {{0}}> () {READ.replace('zero', 'unsigned')}"
    assert {
        f.code for f in verify(tmp_path, nodes=nodes, target=target, unsigned=(DEQUANTIZE,))
    } - {"Q03"} == expected


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize("inputs", [0, 1])
def test_verify_finds_a_quantizer_without_its_scale(tmp_path: Path, op: str, inputs: int) -> None:
    verify(tmp_path)
    proto = onnx.load(tmp_path / "model.onnx")
    (node,) = (node for node in proto.graph.node if node.op_type == op)
    del node.input[inputs:]
    onnx.save(proto, tmp_path / "model.onnx")
    found = said(verify_onnx(tmp_path / "model.onnx", PLAN))
    assert ("Q03", "error", node.name) in found
    assert "C01" in {code for code, _, _ in found}


def test_verify_puts_errors_first(tmp_path: Path) -> None:
    found = verify(tmp_path, plan_of("x_quantizer", "a", "b"), disabled=("a",))
    assert said(found) == [("Q01", "error", "b"), ("Q01", "info", "a")]


def test_verify_finds_a_file_that_is_not_valid(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", PAIR, "int32[1,4] y")
    (found,) = verify_onnx(path)
    assert (found.code, found.severity, found.node) == ("C01", "error", "model.onnx")
