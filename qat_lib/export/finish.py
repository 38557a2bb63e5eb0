"""Export steps common to all frameworks: lower, record, verify, write."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol

import onnx_ir as ir

from qat_lib.analysis.findings import Finding, at_least
from qat_lib.core.plan import PlanLike, QuantizationPlan, as_plan
from qat_lib.engines import get_backend
from qat_lib.errors import ExportError, VerificationError
from qat_lib.export import passes
from qat_lib.export.comparing import ParityReference
from qat_lib.export.graph import UNUSED, copy_graph, rank, run_in_place
from qat_lib.export.options import PASSES, ExportOptions
from qat_lib.export.ranges import LearnedRange, RangeOwner, disabled_quantizers, learned_ranges
from qat_lib.export.record import keras_tensors, node_identities, record_quantizers, write_metadata
from qat_lib.export.self_check import ModelInput, compare_draft
from qat_lib.export.verify import verify_onnx
from qat_lib.files.output_files import check_output
from qat_lib.files.whole_files import folder_beside, place_files
from qat_lib.preprocessing import AnyPreprocessing

Layout = Literal["NHWC", "NCHW"]
"""Axis order of image inputs."""

EXTERNAL_DATA_ABOVE = 1_900_000_000
"""Bytes of weights above which they are written to a separate file: a protobuf message is limited
to 2 GB."""


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """Result of ``export_onnx``.

    Attributes:
        path: path of the file.
        bytes: size of the file, including external data.
        seconds: total wall-clock time.
        conversion_seconds: part of ``seconds`` for the conversion.
        opset: operator set of the file.
        quantizers: number of quantizers in the graph.
        nodes: number of nodes.
        findings: findings of the verification except errors; C02 if the file could not be compared
            with the model.
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


class ExportSource(Protocol):
    """An exportable model of some framework."""

    @property
    def layout(self) -> Layout:
        """Axis order of image inputs."""

    def quantizers(self) -> Sequence[RangeOwner]:
        """Return the quantizers of the model."""

    def convert(self, options: ExportOptions) -> ir.Model:
        """Return an ONNX graph with the layers and quantizers of its nodes.

        See ``qat_lib.keras.export.convert.convert``.
        """

    def inputs(self) -> Sequence[ModelInput]:
        """Return the inputs of the model in order."""

    def reference(self, layers: list[str]) -> ParityReference:
        """Return the reference model with additional outputs of ``layers``."""


def choose_options(options: ExportOptions | None, keywords: ExportOptions) -> ExportOptions:
    """Return export options given as one value or as keywords.

    Raises:
        ExportError: both forms were given.
    """
    if options is not None and keywords != ExportOptions():
        raise ExportError(
            f"Expected the options as one value or as keywords, not both. Received: {options}."
        )
    return options or keywords


def export_source(
    source: ExportSource,
    path: str | os.PathLike[str],
    *,
    options: ExportOptions,
    preprocessing: AnyPreprocessing | None = None,
    metadata: Mapping[str, Any] | None = None,
    plan: PlanLike | None = None,
) -> ExportReport:
    """Convert a model, lower and verify the graph, compare it with the model, and write it.

    Arguments and errors are those of ``qat_lib.keras.export.export.export_onnx``.
    """
    if options.embed_preprocessing and preprocessing is None:
        raise ExportError(
            "embed_preprocessing=True needs the preprocessing. Pass "
            "preprocessing=Preprocessing(...)."
        )
    planned = None if plan is None else as_plan(plan)
    # Before the conversion, which can take long.
    check_output(path)
    started = time.perf_counter()
    quantizers = source.quantizers()
    ranges = learned_ranges(quantizers)
    _check_signs(ranges, options.target)
    graph = source.convert(options)
    converted = time.perf_counter()
    absent = sorted({*disabled_quantizers(quantizers), *graph.meta.get(UNUSED, ())})
    graph = lower(graph, ranges, options, preprocessing, layout=source.layout)
    half = options.float_precision == "fp16"
    recorded = record_quantizers(graph, ranges, absent, half=half)
    entries = _entries(graph, options, source.layout, preprocessing, metadata, planned)
    if (cpu := _cpu(quantizers, planned)) is not None:
        entries["cpu"] = cpu
    write_metadata(graph, {"quantizers": recorded.to_json(), **entries})
    path = Path(path)

    def compare(draft: Path) -> list[Finding]:
        embedded = options.embed_preprocessing
        return compare_draft(source, draft, graph, preprocessing, embedded=embedded)

    findings, written = _write(graph, path, planned, compare)
    # A shared quantizer counts once.
    used = {*recorded.activations, *(w.quantizer for w in recorded.weights.values())}
    return ExportReport(
        path=path,
        bytes=written,
        seconds=time.perf_counter() - started,
        conversion_seconds=converted - started,
        opset=options.opset,
        quantizers=len(used),
        nodes=len(graph.graph),
        findings=tuple(findings),
    )


def _check_signs(ranges: Mapping[str, LearnedRange], target: str) -> None:
    """Check that the target supports the signs of the quantizers.

    Raises:
        ExportError: a quantizer is unsigned, and the target does not support it.
    """
    unsigned = [range_.name for range_ in ranges.values() if range_.unsigned]
    if unsigned and not get_backend(target).supports("unsigned"):
        raise ExportError(
            "Expected signed quantizers: TensorRT runs no unsigned integers. Received "
            f"{len(unsigned)} unsigned ones, "
            f"such as {unsigned[0]!r}. Export with target='openvino', or quantize the model with "
            "unsigned=False."
        )


def _entries(
    graph: ir.Model,
    options: ExportOptions,
    layout: Layout,
    preprocessing: AnyPreprocessing | None,
    extra: Mapping[str, Any] | None,
    plan: QuantizationPlan | None,
) -> dict[str, str]:
    entries = {
        "version": _own_version(),
        "target": options.target,
        "tensors": keras_tensors(graph),
        **node_identities(graph),
        "layout": json.dumps(_layouts(graph, options, layout)),
        "preprocessing_embedded": "true" if options.embed_preprocessing else "false",
    }
    if preprocessing is not None:
        entries["preprocessing"] = json.dumps(preprocessing.to_dict())
    if plan is not None:
        entries["plan_digest"] = plan.digest()
    for key, value in (extra or {}).items():
        # The record of the quantizers and the CPU are added later.
        if key in entries or key in ("quantizers", "cpu"):
            raise ExportError(
                f"Expected metadata keys other than qatline's own. Received: {key!r}. Choose "
                "another name."
            )
        entries[key] = value if isinstance(value, str) else json.dumps(value)
    return entries


def _layouts(graph: ir.Model, options: ExportOptions, layout: Layout) -> dict[str, str]:
    """Return the axis order of each input and output with three to five axes, such as ``NHWC``."""
    first = "NCHW" if options.channels_first_input else layout
    found = {}
    for value in (*graph.graph.inputs, *graph.graph.outputs):
        if (axes := rank(value)) in (3, 4, 5):
            # channels_first_input moves the channels of images only.
            order = first if axes == 4 and value.is_graph_input() else layout
            space = "DHW"[5 - axes :]
            found[str(value.name)] = f"NC{space}" if order == "NCHW" else f"N{space}C"
    return found


def _cpu(quantizers: Sequence[RangeOwner], plan: QuantizationPlan | None) -> str | None:
    """Return the target kind of CPU, from the plan or the ranges."""
    if plan is not None:
        return plan.cpu
    return "avx2" if any(each.pair_axis is not None for each in quantizers) else None


def _own_version() -> str:
    try:
        return version("qatline")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0+unknown"


def _write(
    graph: ir.Model,
    path: Path,
    plan: QuantizationPlan | None,
    compare: Callable[[Path], list[Finding]],
) -> tuple[list[Finding], int]:
    """Write a draft, verify it, compare it and rename it.

    Returns:
        The findings except errors, and the number of bytes written.
    """
    constants = (value.const_value for value in graph.graph.initializers.values())
    external = sum(array.nbytes for array in filter(None, constants)) > EXTERNAL_DATA_ABOVE
    try:
        with folder_beside(path) as folder:
            # Only a file that passed all checks gets the name of the output.
            draft = folder / path.name
            ir.save(graph, draft, external_data=f"{path.name}.data" if external else None)
            findings = verify_onnx(draft, plan)
            errors = at_least(findings, "error")
            if errors:
                raise VerificationError(
                    f"The exported graph of {path.name} is wrong ({len(errors)} "
                    "errors). First: " + "; ".join(str(finding) for finding in errors[:3])
                )
            findings = [*findings, *compare(draft)]
            written = sum(file.stat().st_size for file in folder.iterdir())
            place_files(folder, path)
    except OSError as error:
        raise ExportError(
            f"Expected to write {path}. It failed: {error.strerror or error}."
        ) from error
    return findings, written


def lower(
    graph: ir.Model,
    ranges: Mapping[str, LearnedRange],
    options: ExportOptions,
    preprocessing: AnyPreprocessing | None = None,
    *,
    layout: str = "NHWC",
) -> ir.Model:
    """Run the lowering passes on a converted model; ``graph`` is not modified.

    Args:
        graph: the converted model.
        ranges: range of each quantizer, by name.
        options: options of the export; they select the passes.
        preprocessing: preprocessing of images. Default None: the pass that embeds it does not run.
        layout: axis order of image inputs. Default ``"NHWC"``.
    """
    # One copy for all passes: a copy for each took up to a third of the time of an export.
    lowered = copy_graph(graph)
    given: dict[str, Any] = {"ranges": ranges, "preprocessing": preprocessing, "layout": layout}
    for step in PASSES:
        if step.when is not None and not step.when(options):
            continue
        arguments = [given[name] for name in step.takes]
        # A pass without its argument is skipped, such as the preprocessing.
        if not any(argument is None for argument in arguments):
            run_in_place(getattr(passes, step.function), lowered, *arguments)
    return lowered
