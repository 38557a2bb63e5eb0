"""export_onnx: a Keras model to a verified ONNX file."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qat_lib.analysis.findings import Finding, at_least
from qat_lib.deprecation import warn_renamed
from qat_lib.errors import ExportError, VerificationError
from qat_lib.export.convert import convert
from qat_lib.export.graph import rank
from qat_lib.export.lowering import lower
from qat_lib.export.options import ExportOptions
from qat_lib.export.ranges import LearnedRange, disabled_quantizers, learned_ranges
from qat_lib.export.record import keras_tensors, node_identities, record_quantizers, write_metadata
from qat_lib.export.verify import as_plan, verify_onnx
from qat_lib.files.output_files import check_output
from qat_lib.options import Backend, FloatPrecision, WeightForm
from qat_lib.plan import PlanLike, QuantizationPlan
from qat_lib.preprocessing import Preprocessing

EXTERNAL_DATA_ABOVE = 1_900_000_000
"""Bytes of weights above which they go into a file of their own: one protobuf message ends at 2
GB."""


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What ``export_onnx`` wrote.

    Attributes:
        path: the file.
        bytes: its size, external data included.
        seconds: wall-clock time for everything; ``conversion_seconds`` of it for trace and tf2onnx.
        conversion_seconds: see ``seconds``.
        opset: operator set of the file.
        quantizers: number of quantizers in the graph.
        nodes: number of nodes.
        findings: what the verification found that is no error.
    """

    path: Path
    bytes: int
    seconds: float
    conversion_seconds: float
    opset: int
    quantizers: int
    nodes: int
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            **asdict(self),
            "path": str(self.path),
            "findings": [f.to_dict() for f in self.findings],
        }


def export_onnx(
    model: Any,
    path: str | os.PathLike[str],
    *,
    target: Backend = "tensorrt",
    opset: int = 17,
    weights: WeightForm = "int8",
    float_precision: FloatPrecision = "fp32",
    channels_first_input: bool = False,
    batch: int | None = None,
    preprocessing: Preprocessing | None = None,
    embed_preprocessing: bool = False,
    metadata: Mapping[str, Any] | None = None,
    plan: PlanLike | None = None,
    options: ExportOptions | None = None,
    remainder: FloatPrecision | None = None,
) -> ExportReport:
    """Export a Keras model, quantized or not, to ONNX and verify the result.

    Args:
        model: built Keras Functional or Sequential model.
        path: file to write; it appears whole or not at all.
        target: what the file is for: ``"tensorrt"`` (default), ``"openvino"`` or ``"onnxruntime"``.
        opset: ONNX operator set, 13 to 21. Default 17. ``float_precision="fp16"`` needs, and
            raises it to, 19.
        weights: ``"int8"`` (default) stores quantized weights as INT8 + DequantizeLinear, a quarter
            of the size; ``"qdq"`` as FP32 + QuantizeLinear + DequantizeLinear, which TensorRT up to
            8.6 needs.
        float_precision: precision of non-quantized layers: ``"fp32"`` (default) or ``"fp16"``, for
            strongly typed TensorRT.
        channels_first_input: whether image inputs are NCHW instead of Keras's NHWC. Default False.
        batch: fixed batch size; None (default) leaves it open.
        preprocessing: how raw images become the model's input; recorded in the file.
        embed_preprocessing: whether the graph takes raw images (uint8) and preprocesses them
            itself. Default False.
        metadata: more entries for the file's metadata, such as ``{"classes": [...], "accuracy":
            0.98}``; values that are not text are written as JSON.
        plan: quantization plan that the file is verified against, its dict form, or the path of its
            JSON; its digest is recorded in the file. Default None: verified against the model's own
            quantizers.
        options: all options above that say how the graph is lowered, as one value; default None:
            those keywords. An option of your own has no keyword.
        remainder: deprecated name of ``float_precision``.

    Returns:
        What was written.

    Raises:
        UnsupportedModelError: the model has no graph of layers.
        ConfigError: the path is no place for a file.
        ExportError: an option is wrong, or something can't be said in ONNX or, such as unsigned
            integers, in TensorRT.
        VerificationError: the written graph is not what the model and the plan say; no file is
            left.

    Examples:
        >>> import keras, qat_lib
        >>> x = keras.Input((8, 8, 1))
        >>> model = keras.Model(x, keras.layers.Conv2D(4, 3)(x))
        >>> qat_lib.export_onnx(model, "float.onnx").opset
        17
    """
    if remainder is not None:
        warn_renamed("remainder", "float_precision")
        float_precision = remainder
    keywords = ExportOptions(
        target=target,
        opset=opset,
        weights=weights,
        float_precision=float_precision,
        channels_first_input=channels_first_input,
        batch=batch,
        embed_preprocessing=embed_preprocessing,
    )
    if options is not None and keywords != ExportOptions():
        raise ExportError(
            f"Expected the options as one value or as keywords, not both. Received: {options}."
        )
    options = options or keywords
    if options.embed_preprocessing and preprocessing is None:
        raise ExportError(
            "embed_preprocessing=True needs the preprocessing. Pass "
            "preprocessing=Preprocessing(...)."
        )
    planned = None if plan is None else as_plan(plan)
    check_output(path)
    started = time.perf_counter()
    ranges = learned_ranges(model)
    _check_signs(ranges, options.target)
    graph = convert(model, opset=options.opset, batch=options.batch)
    converted = time.perf_counter()
    graph = lower(graph, ranges, options, preprocessing)
    half = options.float_precision == "fp16"
    recorded = record_quantizers(graph, ranges, disabled_quantizers(model), half=half)
    entries = _entries(graph, options, preprocessing, metadata, planned)
    write_metadata(graph, {"quantizers": recorded.to_json(), **entries})
    path = Path(path)
    findings = _write(graph, path, planned)
    used = {*recorded.activations, *(w.quantizer for w in recorded.weights.values())}
    return ExportReport(
        path=path,
        bytes=path.stat().st_size
        + (data.stat().st_size if (data := _data_path(path)).is_file() else 0),
        seconds=time.perf_counter() - started,
        conversion_seconds=converted - started,
        opset=options.opset,
        quantizers=len(used),
        nodes=len(graph.graph),
        findings=tuple(findings),
    )


def _check_signs(ranges: Mapping[str, LearnedRange], target: str) -> None:
    """Refuse unsigned quantizers in a graph for TensorRT.

    Raises:
        ExportError: there is one.
    """
    unsigned = [range_.name for range_ in ranges.values() if range_.unsigned]
    if unsigned and target == "tensorrt":
        raise ExportError(
            "Expected signed quantizers: TensorRT runs no unsigned integers. Received "
            f"{len(unsigned)} unsigned ones, "
            f"such as {unsigned[0]!r}. Export with target='openvino', or quantize the model with "
            "unsigned=False."
        )


def _entries(
    graph: ir.Model,
    options: ExportOptions,
    preprocessing: Preprocessing | None,
    extra: Mapping[str, Any] | None,
    plan: QuantizationPlan | None,
) -> dict[str, str]:
    order = "NCHW" if options.channels_first_input else "NHWC"
    images = {value.name: order for value in graph.graph.inputs if rank(value) == 4}
    entries = {
        "version": _own_version(),
        "target": options.target,
        "tensors": keras_tensors(graph),
        **node_identities(graph),
        "layout": json.dumps(images),
        "preprocessing_embedded": "true" if options.embed_preprocessing else "false",
    }
    if preprocessing is not None:
        entries["preprocessing"] = json.dumps(preprocessing.to_dict())
    if plan is not None:
        entries["plan_digest"] = plan.digest()
    for key, value in (extra or {}).items():
        if key in entries or key == "quantizers":
            raise ExportError(
                f"Expected metadata keys other than qatline's own. Received: {key!r}. Choose "
                "another name."
            )
        entries[key] = value if isinstance(value, str) else json.dumps(value)
    return entries


def _own_version() -> str:
    try:
        return version("qatline")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0+unknown"


def _data_path(path: Path) -> Path:
    return path.with_name(path.name + ".data")


def _write(graph: ir.Model, path: Path, plan: QuantizationPlan | None) -> list[Finding]:
    """Write beside the target, verify, then rename; return the findings that are no errors."""
    constants = (value.const_value for value in graph.graph.initializers.values())
    external = sum(array.nbytes for array in filter(None, constants)) > EXTERNAL_DATA_ABOVE
    folder = path.parent / f".{path.name}.{os.getpid()}.tmp"
    draft = folder / path.name
    try:
        folder.mkdir(parents=True)
        ir.save(graph, draft, external_data=_data_path(path).name if external else None)
        findings = verify_onnx(draft, plan)
        errors = at_least(findings, "error")
        if errors:
            raise VerificationError(
                f"The exported graph of {path.name} is not what it should be ({len(errors)} "
                "errors). First: " + "; ".join(str(finding) for finding in errors[:3])
            )
        if external:
            _data_path(draft).replace(_data_path(path))
        draft.replace(path)
    except OSError as error:
        raise ExportError(
            f"Expected to write {path}. It failed: {error.strerror or error}."
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return findings
