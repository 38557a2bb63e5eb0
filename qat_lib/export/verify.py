"""Check that an ONNX file is what it should be: legal, and holding exactly the plan's quantizers with their ranges.

Codes of this module, beside those of :mod:`qat_lib.analysis.findings`:

    C01  the file is not valid ONNX (onnx.checker in full mode: types and shapes are inferred, too)
    Q01  a quantizer of the plan is missing in the graph
    Q02  the graph has a quantizer that the plan does not have
    Q03  the scale of a quantizer is not the learned one
    Q04  the INT8 weights are not the learned ones
    Q05  a QuantizeLinear or DequantizeLinear has lost its partner or one of its readers

This module needs neither TensorFlow nor Keras.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qat_lib.analysis.findings import Finding
from qat_lib.analysis.rules import check_parser_rules
from qat_lib.errors import PlanError
from qat_lib.export.metadata import Recorded
from qat_lib.export.tensors import Tensors
from qat_lib.export.verify_ranges import check_activations, check_weights, problem
from qat_lib.onnx_view.graph import OnnxGraph
from qat_lib.onnx_view.loading import load_model
from qat_lib.onnx_view.metadata import read_metadata

if TYPE_CHECKING:
    from qat_lib.plan import QuantizationPlan


def verify_onnx(path: str | os.PathLike[str], plan: Any | None = None) -> list[Finding]:
    """Verify an ONNX file of any producer.

    Args:
        path: the file.
        plan: :class:`~qat_lib.plan.QuantizationPlan`, its dict form, or the path of its JSON.
            Default None: the quantizers are checked against the record that ``export_onnx`` left in
            the file; a file of another producer is then checked for legality only.

    Returns:
        The findings, errors first; an empty list means that nothing is wrong.

    Raises:
        ExportError: the file can't be read as ONNX at all.
        PlanError: ``plan`` is no quantization plan.

    Example:
        >>> from qat_lib import verify_onnx
        >>> verify_onnx("model.onnx")
        []
    """
    path = Path(path)
    proto = load_model(path)
    graph = OnnxGraph(proto, base_dir=path.resolve().parent)
    findings = list(_check_file(path))
    tensors = Tensors(proto, path.parent)
    metadata = read_metadata(proto)
    rules = check_parser_rules(graph, tensorrt=10)
    # A file for a CPU runtime holds UINT8 on purpose (rule P5); all other rules are good for every
    # runtime.
    findings += [
        f for f in rules if metadata.get("target", "tensorrt") == "tensorrt" or f.rule != "P5"
    ]
    text = metadata.get("quantizers")
    recorded = None if text is None else Recorded.from_json(text)
    names = None if plan is None else {entry.name for entry in read_plan(plan).quantizers}
    if (
        recorded is not None
        and names is None
        and not (recorded.activations or recorded.weights or recorded.disabled)
    ):
        # Exported in floating point: whoever quantized the file since then is its producer.
        recorded = None
    if recorded is not None or names is not None:
        findings += _check_pairs(tensors.proto)
        findings += _check_names(tensors, names, recorded)
    if recorded is not None:
        findings += check_activations(tensors, recorded)
        findings += check_weights(tensors, recorded)
        findings += _check_readers(tensors.proto, recorded.readers)
    return sorted(findings, key=lambda f: ("error", "warning", "info").index(f.severity))


def read_plan(plan: Any) -> QuantizationPlan:
    """Return a plan from itself, its dict form, or the path of its JSON.

    Raises:
        PlanError: ``plan`` is no quantization plan, or its file can't be read.
    """
    from qat_lib.plan import QuantizationPlan

    if isinstance(plan, QuantizationPlan):
        return plan
    if isinstance(plan, Mapping):
        return QuantizationPlan.from_dict(plan)
    if isinstance(plan, str | os.PathLike):
        return QuantizationPlan.load(Path(plan))
    raise PlanError(
        f"Expected a QuantizationPlan, its dict form or the path of its JSON. Received: {type(plan).__name__}."
    )


def _check_file(path: Path) -> Iterator[Finding]:
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        ValueError,
        RuntimeError,
    ) as error:
        reason = str(error).strip().split("\n")[0]
        yield problem(
            "C01", path.name, f"onnx.checker refuses the model: {reason}", "Export the model again."
        )


def _check_pairs(proto: Any) -> Iterator[Finding]:
    """Yield each Q whose integers something else reads, and each DQ that reads neither a Q nor INT8 weights."""
    made = {output: node for node in proto.graph.node for output in node.output}
    constants = {tensor.name for tensor in proto.graph.initializer}
    read: dict[str, list[Any]] = {}
    for node in proto.graph.node:
        for name in node.input:
            read.setdefault(name, []).append(node)
    outputs = {value.name for value in proto.graph.output}
    for node in proto.graph.node:
        if node.op_type == "QuantizeLinear":
            readers = [reader for name in node.output for reader in read.get(name, [])]
            if (
                not readers
                or outputs.intersection(node.output)
                or any(r.op_type != "DequantizeLinear" for r in readers)
            ):
                yield problem(
                    "Q05",
                    node.name,
                    "its integers are read by something else than one DequantizeLinear.",
                    "A tool has changed the graph behind the export: export again and use the file as it is.",
                )
        elif node.op_type == "DequantizeLinear":
            source = made.get(node.input[0])
            if node.input[0] not in constants and (
                source is None or source.op_type != "QuantizeLinear"
            ):
                yield problem(
                    "Q05",
                    node.name,
                    "it reads neither a QuantizeLinear nor a constant: an operator stands between Q and DQ.",
                    "A tool has changed the graph behind the export: export again and use the file as it is.",
                )


def _check_readers(proto: Any, recorded: Mapping[str, tuple[str, ...]] | None) -> Iterator[Finding]:
    """Yield each DQ that the export did not write, and each that other operators read than those it was written for."""
    if recorded is None:
        return
    read: dict[str, list[str]] = {value.name: [f"{value.name}:"] for value in proto.graph.output}
    for node in proto.graph.node:
        for index, name in enumerate(node.input):
            read.setdefault(name, []).append(f"{node.name}:{index}")
    for node in proto.graph.node:
        if node.op_type != "DequantizeLinear":
            continue
        expected = recorded.get(node.name)
        found = tuple(sorted(use for name in node.output for use in read.get(name, [])))
        if expected is None:
            yield problem(
                "Q02",
                node.name,
                "the export wrote no such DequantizeLinear: a tensor is quantized that the plan does not quantize.",
                "A tool has changed the graph behind the export: export again and use the file as it is.",
            )
        elif found != expected:
            lost = ", ".join(sorted(set(expected) - set(found))) or "none"
            new = ", ".join(sorted(set(found) - set(expected))) or "none"
            yield problem(
                "Q05",
                node.name,
                f"other operators read it than those that were quantized (lost: {lost}; new: {new}).",
                "A tool has changed the graph behind the export: export again and use the file as it is.",
            )


def _check_names(
    tensors: Tensors, planned: set[str] | None, recorded: Recorded | None
) -> Iterator[Finding]:
    nodes = tensors.proto.graph.node
    present = {tensors.quantizer(node) for node in nodes if node.op_type == "DequantizeLinear"}
    kept = (
        set()
        if recorded is None
        else {*recorded.activations, *(w.quantizer for w in recorded.weights.values())}
    )
    disabled = set() if recorded is None else set(recorded.disabled)
    expected = kept if planned is None else (planned - disabled) | (kept & planned)
    for name in sorted(expected - present):
        yield problem(
            "Q01",
            name,
            "this quantizer is not in the graph: its Q/DQ pair was folded away or never traced.",
            "Export again; if it stays, its tensor reaches no output of the model.",
        )
    for name in sorted(present - expected):
        yield problem(
            "Q02",
            name,
            "the graph quantizes here, the plan does not.",
            "Verify with the plan that the model was quantized with.",
        )
    for name in sorted(disabled & (planned or set())):
        yield problem(
            "Q01",
            name,
            "this quantizer is disabled in the Keras model.",
            "Enable it to quantize.",
            "info",
        )
