"""Verification of an ONNX file: legality, and the plan's quantizers with their ranges.

``qat_lib.analysis.rules.record`` defines the codes, in addition to the parser rules. This module
requires neither TensorFlow nor Keras.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qat_lib.analysis.findings import Finding, by_severity
from qat_lib.analysis.rules.parser import check_parser_rules
from qat_lib.analysis.rules.record import C01, Q01, Q02, Q05
from qat_lib.core.plan import PlanLike, as_plan
from qat_lib.export.metadata import Recorded
from qat_lib.export.tensors import Tensors
from qat_lib.export.verify_ranges import CHANGED, check_activations, check_weights
from qat_lib.onnx_view.graph import OnnxGraph
from qat_lib.onnx_view.loading import load_onnx
from qat_lib.onnx_view.metadata import read_metadata
from qat_lib.onnx_view.protos import input_name, message_names, writers


def verify_onnx(path: str | os.PathLike[str], plan: PlanLike | None = None) -> list[Finding]:
    """Verify an ONNX file of any producer.

    Args:
        path: the file.
        plan: ``qat_lib.core.plan.QuantizationPlan``, its dict form, or the path of its JSON.
            Default None: the quantizers are checked against the record of ``export_onnx`` in the
            file; a file of another producer is checked for legality only.

    Returns:
        The findings, errors first; empty for a valid file.

    Raises:
        ExportError: the file can't be read as ONNX.
        PlanError: ``plan`` is not a quantization plan.

    Examples:
        >>> from qat_lib import verify_onnx
        >>> verify_onnx("model.onnx")
        []
    """
    path = Path(path)
    proto = load_onnx(path)
    graph = OnnxGraph(proto, base_dir=path.resolve().parent)
    tensors = Tensors(proto, path.parent)
    metadata = read_metadata(proto)
    recorded = _read_record(metadata, planned=plan is not None)
    names = None if plan is None else {entry.name for entry in as_plan(plan).quantizers}
    # A file of unknown origin is checked for TensorRT, the strictest target.
    unsigned = graph.target not in (None, "tensorrt")
    findings = [*_check_file(path), *check_parser_rules(graph, allow_uint8=unsigned)]
    if recorded is not None or names is not None:
        findings += _check_pairs(tensors.proto)
        # The node of these findings is the name of a quantizer.
        found = _check_names(tensors, names, recorded)
        findings += [replace(finding, quantizer=finding.node) for finding in found]
    if recorded is not None:
        findings += check_activations(tensors, recorded)
        findings += check_weights(tensors, recorded)
        findings += _check_readers(tensors.proto, recorded.readers)
    return by_severity(_identified(finding, graph) for finding in findings)


def _identified(finding: Finding, graph: OnnxGraph) -> Finding:
    """Return a finding with the recorded identity of its node or quantizer."""
    node = graph.node_by_name.get(finding.node)
    if node is not None:
        return replace(finding, keras_layer=node.keras_layer, quantizer=node.quantizer)
    known = graph.identities
    quantizer = finding.quantizer or known.quantizers.get(finding.node, "")
    layers = known.layers_of(quantizer)
    return replace(
        finding, keras_layer=layers[0] if layers else finding.keras_layer, quantizer=quantizer
    )


def _read_record(metadata: Mapping[str, str], *, planned: bool) -> Recorded | None:
    """Return the record of the export; None for a file of another producer."""
    text = metadata.get("quantizers")
    if text is None:
        return None
    recorded = Recorded.from_json(text)
    # Exported in floating point: another tool may have quantized the file since.
    in_float = not (recorded.activations or recorded.weights or recorded.disabled)
    return None if in_float and not planned else recorded


def _check_file(path: Path) -> Iterator[Finding]:
    import onnx

    try:
        # By path, so that the checker finds external data. full_check infers types and shapes, too.
        onnx.checker.check_model(str(path), full_check=True)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        ValueError,
        RuntimeError,
    ) as error:
        reason = str(error).strip().split("\n")[0]
        yield C01.at(
            path.name,
            message=f"onnx.checker refuses the model: {reason}",
            advice="Export the model again.",
        )


def _check_pairs(proto: Any) -> Iterator[Finding]:
    """Yield each Q with another reader than a DQ, and each DQ without a valid source.

    A valid source is a Q or a constant.
    """
    made = writers(proto.graph.node)
    constants = set(message_names(proto.graph.initializer))
    outputs = set(message_names(proto.graph.output))
    # The operators that read each tensor.
    read: dict[str, list[str]] = defaultdict(list)
    for node in proto.graph.node:
        for name in node.input:
            read[name].append(node.op_type)
    for node in proto.graph.node:
        if node.op_type == "QuantizeLinear":
            readers = set(_reads(node, read))
            if readers != {"DequantizeLinear"} or outputs.intersection(node.output):
                yield Q05.at(
                    node.name,
                    message="its integers are read by something else than one DequantizeLinear.",
                    advice=CHANGED,
                )
        elif node.op_type == "DequantizeLinear" and input_name(node, 0) not in constants:
            source = made.get(input_name(node, 0))
            if source is None or source.op_type != "QuantizeLinear":
                yield Q05.at(
                    node.name,
                    message="it reads neither a QuantizeLinear nor a constant: an operator stands "
                    "between Q and DQ.",
                    advice=CHANGED,
                )


def _check_readers(proto: Any, recorded: Mapping[str, tuple[str, ...]] | None) -> Iterator[Finding]:
    """Yield each DQ that has other readers than recorded, or no record."""
    if recorded is None:
        return
    read = _reader_ports(proto)
    for node in proto.graph.node:
        if node.op_type != "DequantizeLinear":
            continue
        # The name identifies the node: the export names all nodes uniquely.
        expected = recorded.get(node.name)
        found = tuple(sorted(_reads(node, read)))
        if expected is None:
            yield Q02.at(
                node.name,
                message="the export wrote no such DequantizeLinear: a tensor is quantized that the "
                "plan does not quantize.",
                advice=CHANGED,
            )
        elif found != expected:
            lost = ", ".join(sorted(set(expected) - set(found))) or "none"
            new = ", ".join(sorted(set(found) - set(expected))) or "none"
            yield Q05.at(
                node.name,
                message="other operators read it than those that were quantized "
                f"(lost: {lost}; new: {new}).",
                advice=CHANGED,
            )


def _reads(node: Any, read: Mapping[str, list[str]]) -> list[str]:
    """Return the readers of a node's outputs, from each tensor's readers."""
    return [reader for name in node.output for reader in read.get(name, ())]


def _reader_ports(proto: Any) -> dict[str, list[str]]:
    """Return the readers of each tensor: ``<node>:<input>``, or ``<output>:`` of the graph."""
    read: dict[str, list[str]] = defaultdict(list)
    for value in proto.graph.output:
        read[value.name] = [f"{value.name}:"]
    for node in proto.graph.node:
        for index, name in enumerate(node.input):
            read[name].append(f"{node.name}:{index}")
    return read


def _check_names(
    tensors: Tensors, planned: set[str] | None, recorded: Recorded | None
) -> Iterator[Finding]:
    """Yield missing and unexpected quantizers, by the plan or the record."""
    present = set()
    for node in tensors.proto.graph.node:
        if node.op_type == "DequantizeLinear":
            present.add(tensors.quantizer(node))
    kept, disabled = _recorded_names(recorded)
    # Recorded quantizers of the plan count even if disabled ones share their names.
    expected = kept if planned is None else (planned - disabled) | (kept & planned)
    for name in sorted(expected - present):
        yield Q01.at(
            name,
            message="this quantizer is not in the graph: its Q/DQ pair was folded away or never "
            "traced.",
            advice="Export again.",
        )
    for name in sorted(present - expected):
        yield Q02.at(
            name,
            message="the graph quantizes here, the plan does not.",
            advice="Verify with the plan that the model was quantized with.",
        )
    for name in sorted(disabled & (planned or set())):
        yield Q01.at(
            name,
            message="this quantizer is not in the graph: it is disabled, or no output of the model "
            "depends on its tensor.",
            advice="If it is disabled, enable it to quantize its tensor.",
            severity="info",
        )


def _recorded_names(recorded: Recorded | None) -> tuple[set[str], set[str]]:
    """Return the recorded quantizers and the disabled ones."""
    if recorded is None:
        return set(), set()
    weights = (weight.quantizer for weight in recorded.weights.values())
    return {*recorded.activations, *weights}, set(recorded.disabled)
