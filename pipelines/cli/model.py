"""Single-file commands: export, verify, analyze and evaluate.

The other single-file commands are registered here, too. Each is a thin layer over one function of
``qat_lib``; the functions for the screen are in ``model_views``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from qat_lib.export.options import ExportOptions
from qatline.pipelines.cli.command import command
from qatline.pipelines.cli.data_files import check_inputs
from qatline.pipelines.cli.derived_options import with_export_options
from qatline.pipelines.cli.diagnose import diagnose_file
from qatline.pipelines.cli.engine import bench, build, check
from qatline.pipelines.cli.finetune import finetune_file
from qatline.pipelines.cli.optimize import optimize_file
from qatline.pipelines.cli.options import (
    BackendOption,
    JsonOption,
    LabelsOption,
    OnnxFile,
    TaskOption,
    TestDataOption,
    print_json,
)
from qatline.pipelines.cli.predict import predict_file
from qatline.pipelines.cli.quantize import quantize
from qatline.pipelines.cli.search import search_file

if TYPE_CHECKING:
    from qat_lib.analysis.report import FusionReport
    from qat_lib.analysis.tensor_trace import TensorTrace

_PANEL = "Single files"

TensorRT: TypeAlias = Literal["8", "10", "11"]
FailOn: TypeAlias = Literal["never", "error", "warning"]


@with_export_options
def export(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL.keras", help="Keras model, quantized or not.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="ONNX file to write.")],
    options: Callable[..., ExportOptions],
    target: BackendOption = "auto",
    plan: Annotated[
        Path | None, typer.Option(help="plan.json to verify the file against.", show_default=False)
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(help="Compare with Keras on the inputs in this .npy.", show_default=False),
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="With --check: compare every layer.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Export a Keras model to ONNX and verify the file."""
    from qatline.pipelines.cli.quiet_import import import_tensorflow

    import_tensorflow()
    import qat_lib
    from qat_lib.core.deployment import Deployment
    from qatline.pipelines.cli import model_views

    chosen = options(target=Deployment.on(target).backend)
    network = qat_lib.load_model(model)
    inputs = None if check is None else model_views.read_inputs(check)
    if check is not None:
        check_inputs(network, inputs, check)
    report = qat_lib.export_onnx(network, output, options=chosen, plan=plan)
    content: dict[str, Any] = report.to_dict()
    parity = None
    if inputs is not None:
        parity = qat_lib.check_parity(network, output, inputs, layers=layers)
        content["parity"] = parity.to_dict()
    if json_:
        print_json(content)
    else:
        model_views.show_export(report, parity)
    if parity is not None and not parity.passed:
        raise typer.Exit(1)


def verify_file(
    model: OnnxFile,
    plan: Annotated[
        Path | None,
        typer.Option(help="plan.json with the expected quantizers.", show_default=False),
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 on findings of this severity.")] = "error",
    json_: JsonOption = False,
) -> None:
    """Check an ONNX file against its plan and TensorRT's parser rules.

    The quantizers are checked against the plan, the graph against the parser rules.
    """
    from qat_lib.analysis.findings import fail_on as gate
    from qat_lib.export.verify import verify_onnx
    from qatline.pipelines.cli import model_views

    findings = verify_onnx(model, plan)
    failed = gate(findings, fail_on)
    if json_:
        print_json(
            {
                "model": str(model),
                "passed": not failed,
                "findings": [each.to_dict() for each in findings],
            }
        )
    else:
        model_views.show_findings(model, findings)
    if failed:
        raise typer.Exit(1)


def analyze(
    model: OnnxFile,
    html: Annotated[
        Path | None, typer.Option(help="Write the graph as an HTML file.", show_default=False)
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            help="Layer file of a built engine, to score the prediction.", show_default=False
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Show one layer, quantizer, tensor or node from plan to engine.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="With --trace: plan.json of the model.", show_default=False),
    ] = None,
    tensorrt: Annotated[
        TensorRT | None,
        typer.Option(
            help="Predict for this major version of TensorRT (the target in the file, or TensorRT "
            "10).",
            show_default=False,
        ),
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 on findings of this severity.")] = "never",
    all_findings: Annotated[
        bool, typer.Option("--all", help="Show every finding, not one per kind.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Predict INT8 layers and fusions of an engine, without a GPU."""
    from qat_lib.analysis import analyze_onnx, to_html
    from qat_lib.analysis import compare as score
    from qat_lib.analysis.findings import fail_on as gate
    from qat_lib.files.output_files import check_output
    from qatline.pipelines.cli import model_views

    if html is not None:
        check_output(html, inputs=[model])
    version: Any = int(tensorrt or 10)
    report = analyze_onnx(model, tensorrt=version, target=None if tensorrt is None else "tensorrt")
    comparison = score(report, compare) if compare is not None else None
    found = None if trace is None else _trace(trace, model, plan, report, compare)
    if html is not None:
        model_views.write_file(html, to_html(report))
    if json_:
        content = report.to_dict()
        if comparison is not None:
            content["comparison"] = comparison.to_dict()
        if found is not None:
            content["trace"] = found.to_dict()
        print_json(content)
    elif found is not None:
        model_views.show_trace(found)
    else:
        model_views.show_analysis(report, comparison, all_findings=all_findings)
    if gate(report.findings, fail_on):
        raise typer.Exit(1)


def _trace(
    name: str, model: Path, plan: Path | None, report: FusionReport, layers: Path | None
) -> TensorTrace:
    from qat_lib.analysis.tracing import trace_tensor

    return trace_tensor(name, model, plan, analysis=report, engine_layers=layers or ())


def evaluate(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Keras model, ONNX file, or engine with manifest."),
    ],
    data: TestDataOption,
    labels: LabelsOption = None,
    task: TaskOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 32,
    latency: Annotated[
        bool, typer.Option("--latency", help="Also measure latency (ONNX files and engines only).")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=0.01, max=3600, help="With --latency: seconds to measure.")
    ] = 2.0,
    json_: JsonOption = False,
) -> None:
    """Measure the quality of a Keras model, ONNX file or engine.

    An ONNX file runs in ONNX Runtime.
    """
    from qatline.components.data.labelled import TEST_PAIRS, read_labelled
    from qatline.pipelines.cli import model_views
    from qatline.pipelines.cli.evaluation import evaluate_file

    with tempfile.TemporaryDirectory(prefix="qatline-") as scratch:
        part = read_labelled(data, labels, Path(scratch), TEST_PAIRS)
        found = evaluate_file(
            model,
            part,
            data,
            task=task,
            batch_size=batch_size,
            seconds=seconds if latency else None,
        )
    if json_:
        print_json(found.to_dict())
    else:
        model_views.show_evaluation(found)


def register(app: typer.Typer) -> None:
    """Add the commands to the main app."""
    for name, function in (
        ("optimize", optimize_file),
        ("quantize", quantize),
        ("finetune", finetune_file),
        ("diagnose", diagnose_file),
        ("search", search_file),
        ("export", export),
        ("verify", verify_file),
        ("analyze", analyze),
        ("build-engine", build),
        ("bench-engine", bench),
        ("check-engine", check),
        ("evaluate", evaluate),
        ("predict", predict_file),
    ):
        app.command(name, rich_help_panel=_PANEL)(command(function))
