"""Output of the commands on single files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qat_lib.errors import ConfigError, DataError
from qat_lib.files.output_files import check_output
from qat_lib.files.whole_files import write_text
from qat_lib.pages import numbers

if TYPE_CHECKING:
    from qat_lib.analysis import Comparison, Finding, FusionReport
    from qat_lib.analysis.tensor_trace import TensorTrace
    from qat_lib.core.plan import QuantizationPlan
    from qat_lib.engines import EngineArtifact, EngineLayer, EngineManifest, Latency, Percentiles
    from qat_lib.engines.check import EngineCheck
    from qat_lib.export import ExportReport, ParityReport
    from qat_lib.keras.calibration import CalibrationReport
    from qat_lib.optimization import Optimized
    from qatline.components.artifacts.metric import Metric
    from qatline.components.artifacts.models import Epoch
    from qatline.pipelines.cli.evaluation import FileEvaluation

_NONE = "-"
_MOST_BOXES = 6
_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def read_inputs(path: Path) -> Any:
    """Return the model inputs of a file.

    Args:
        path: a ``.npy`` file of one input, which is memory-mapped, or a ``.npz`` file: one input of
            any name, or several by their names.

    Raises:
        DataError: The file is missing or holds no arrays of numbers.
    """
    import zipfile
    import zlib

    import numpy as np

    from qat_lib.files.npy import load_npy

    try:
        if path.suffix != ".npz":
            return load_npy(path)
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
            return found if len(found) > 1 else next(iter(found.values()), found)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"Expected an array of inputs in {path} (.npy), or several (.npz); it can't be read: "
            f"{reason}."
        ) from error


def write_file(path: Path, text: str, *, make_folder: bool = False) -> None:
    """Write a requested text file; ``make_folder`` creates its folder.

    Raises:
        ConfigError: It can't be written there.
    """
    check_output(path)
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise ConfigError(f"Could not write {path}: {error}") from error


def write_model(path: Path, model: Any) -> None:
    """Save a Keras model, whole or not at all.

    Raises:
        ConfigError: It can't be written there.
    """
    check_output(path)
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        model.save(beside)
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"Could not write {path}: {error}") from error
    finally:
        beside.unlink(missing_ok=True)


def show_quantization(
    plan: QuantizationPlan, output: Path | None, report: CalibrationReport | None
) -> None:
    """Show a plan or, after a calibration, the written model."""
    console = _console()
    kinds = Counter(entry.kind for entry in plan.quantizers)
    listed = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    counts = f"{len(plan.quantizers)} quantizers ({listed})"
    if output is not None and report is not None:
        console.print(
            f"Wrote {escape(str(output))}: {counts}, calibrated on {report.samples} samples",
            soft_wrap=True,
        )
        return
    console.print(f"{escape(plan.model)}: {counts}")
    tensors = plain_table("tensor", "read by", text=True)
    for entry in plan.quantizers:
        readers = ", ".join(consumer.layer for consumer in entry.consumers) or "its layer"
        tensors.add_row(escape(entry.tensor), escape(readers))
    console.print(tensors)
    if plan.skipped:
        left = plain_table("not quantized", "reason", text=True)
        for layer in plan.skipped:
            left.add_row(escape(f"{layer.layer} ({layer.class_name})"), escape(layer.reason))
        console.print(left)


def show_export(report: ExportReport, parity: ParityReport | None) -> None:
    """Show the written file and its comparison with Keras."""
    console = _console()
    console.print(
        f"Wrote {escape(str(report.path))}: {numbers.size(report.bytes)}, opset {report.opset}, "
        f"{report.nodes} nodes, {report.quantizers} quantizers, in {report.seconds:.1f} s",
        soft_wrap=True,
    )
    _print_findings(console, report.findings)
    if parity is None:
        return
    verdict = "[green]agrees with Keras[/]" if parity.passed else "[bold red]differs from Keras[/]"
    console.print(
        f"ONNX Runtime {verdict} on {parity.samples} samples: largest difference "
        f"{parity.largest_difference:.3g}, {parity.mismatches} labels differ, {parity.ties} ties."
    )
    if parity.layers:
        table = plain_table("layer", "largest difference")
        for layer in parity.layers:
            table.add_row(escape(layer.layer), f"{layer.largest:.3g}")
        console.print(table)


def show_findings(model: Path, findings: Sequence[Finding]) -> None:
    """List the findings of a verification."""
    console = _console()
    if not findings:
        console.print(f"{escape(str(model))}: [green]nothing is wrong[/]", soft_wrap=True)
        return
    counts = {severity: sum(each.severity == severity for each in findings) for severity in _STYLES}
    console.print(
        f"{escape(str(model))}: "
        + ", ".join(f"{n} {_plural(name, n)}" for name, n in counts.items() if n),
        soft_wrap=True,
    )
    _print_findings(console, findings)


def _plural(severity: str, count: int) -> str:
    return severity if severity == "info" or count == 1 else severity + "s"


def show_analysis(
    report: FusionReport, comparison: Comparison | None, *, all_findings: bool
) -> None:
    """Show a prediction and, given an engine, its score."""
    from qat_lib.analysis.table import render

    console = _console()
    console.print(render(report, all_findings=all_findings))
    if comparison is None:
        return
    table = plain_table("against the engine", "")
    table.add_row(
        "layers found", f"{comparison.matched} of {comparison.matched + len(comparison.unmatched)}"
    )
    scores = {
        "precision": comparison.precision_score,
        "output": comparison.output_score,
        "adds": comparison.add_score,
    }
    for name, value in scores.items():
        table.add_row(f"{name} as predicted", _NONE if value is None else f"{value:.1%}")
    table.add_row("layers", f"{comparison.engine_layers} (predicted {comparison.predicted_layers})")
    table.add_row(
        "conversions",
        f"{comparison.engine_conversions} (predicted {comparison.predicted_conversions})",
    )
    console.print(table)
    for miss in comparison.mismatches:
        console.print(
            f"  {escape(miss.node)}: {miss.what} predicted {miss.predicted}, found {miss.found}"
        )


def show_trace(trace: TensorTrace) -> None:
    """Show the quantizer, readers and range of one tensor."""
    _console().print(escape(str(trace)), soft_wrap=True)


def show_engine(artifact: EngineArtifact) -> None:
    """Show an engine that was built."""
    console, manifest = _console(), artifact.manifest
    console.print(
        f"Wrote {escape(str(artifact.path))}: {numbers.size(manifest.bytes)}, "
        f"{_described(manifest)}, in {manifest.build_seconds:.1f} s",
        soft_wrap=True,
    )
    for warning in artifact.warnings:
        console.print(f"[yellow]warning[/]: {escape(warning)}")


def show_latencies(
    manifest: EngineManifest, latencies: Sequence[Latency], layers: Sequence[EngineLayer]
) -> None:
    """Show one row per batch size, and the layers by time."""
    console = _console()
    console.print(_described(manifest))
    table = plain_table("batch", "p50 ms", "p90 ms", "p99 ms", "samples/s", "requests")
    for each in latencies:
        table.add_row(
            str(each.batch_size),
            *_times(each.end_to_end),
            f"{each.throughput:,.0f}",
            str(each.iterations),
        )
    console.print(table)
    computed = [(each.batch_size, each.compute) for each in latencies if each.compute is not None]
    if computed:
        table = plain_table("compute alone", "p50 ms", "p90 ms", "p99 ms")
        for batch_size, compute in computed:
            table.add_row(f"batch {batch_size}", *_times(compute))
        console.print(table)
    if layers:
        table = plain_table("layer", "kind", "precision", "ms")
        for layer in sorted(layers, key=lambda each: -(each.time_ms or 0.0)):
            time = _NONE if layer.time_ms is None else f"{layer.time_ms:.3f}"
            table.add_row(escape(layer.name), escape(layer.kind), layer.precision, time)
        console.print(table)


def show_check(found: EngineCheck) -> None:
    """Show whether an engine answers as its graph, and its layers if compared."""
    console = _console()
    verdict = "[green]agrees[/]" if found.passed else "[bold red]departs[/]"
    console.print(f"The engine {verdict}: {escape(found.message)}")
    if found.label_agreement is not None and found.passed:
        console.print(f"Equal labels: {found.label_agreement:.2%}")
    if found.layers:
        table = plain_table("layer", "difference", "accepted")
        for each in found.layers:
            style = "bold red" if each.departs else ""
            cells = (escape(each.layer), f"{each.difference:.2g}", f"{each.bound:.2g}")
            table.add_row(*cells, style=style)
        console.print(table)


def show_finetuning(output: Path, history: Sequence[Epoch], kept: Epoch, metric: Metric) -> None:
    """Show each epoch of a fine-tuning, and the kept one."""
    console = _console()
    title = metric.label
    table = plain_table("epoch", "loss", title, "val. loss", f"val. {title}", "kept")
    for epoch in history:
        losses = [
            _NONE if value is None else f"{value:.4f}" for value in (epoch.loss, epoch.val_loss)
        ]
        found = [epoch.training(metric.name), epoch.validation(metric.name)]
        shares = [_NONE if value is None else metric.text(value) for value in found]
        cells = (losses[0], shares[0], losses[1], shares[1], "yes" if epoch is kept else "")
        table.add_row(f"{epoch.epoch:.0f}", *cells)
    console.print(table)
    if not kept.epoch:
        console.print("No epoch beats the model as it came by more than noise: it is kept.")
    console.print(f"Wrote {escape(str(output))}", soft_wrap=True)


def show_evaluation(found: FileEvaluation) -> None:
    """Show a model's quality and, if measured, its latency."""
    console = _console()
    console.print(
        f"{escape(str(found.model))}: {found.backend}, {found.samples} samples",
        soft_wrap=True,
    )
    width = max(len(metric.label) for metric in found.metrics)
    for metric in found.metrics:
        text = metric.text(found.quality[metric.name])
        console.print(f"{metric.label:<{width}} {text}")
    if found.latency_ms_p50 is not None and found.latency_ms_p99 is not None:
        times = map(numbers.significant, (found.latency_ms_p50, found.latency_ms_p99))
        console.print(
            f"{'latency':<{width}} {' / '.join(times)} ms (p50 / p99, batch {found.latency_batch})"
        )


def show_optimized(found: Optimized) -> None:
    """Show the comparison of the float and the INT8 engine, and the attempts."""
    console = _console()
    console.print(escape(str(found)), soft_wrap=True)
    if len(found.attempts) > 1:
        table = plain_table("attempt", found.metric, "drop", "layers in float", "seconds")
        for each in found.attempts:
            floats = str(len(each.float_layers)) if each.float_layers else ""
            cells = (f"{each.value:.4f}", f"{each.drop:.4f}", floats, f"{each.seconds:.0f}")
            table.add_row(each.method, *cells)
        console.print(table)
    for warning in found.warnings:
        console.print(f"[yellow]Warning:[/] {escape(warning)}", soft_wrap=True)
    if found.reason:
        console.print(f"Verdict: {found.verdict.replace('fp', 'FP')}: {escape(found.reason)}.")
    console.print(
        f"Wrote {escape(str(found.engine.parent))}: {found.engine.name}, {found.onnx.name}, "
        f"{found.float_engine.name}, plan.json, report.html",
        soft_wrap=True,
    )


def show_predictions(rows: Sequence[Mapping[str, Any]], outputs: Mapping[str, Any]) -> None:
    """Show the answer of each sample, or without a decoding a summary of the outputs."""
    console = _console()
    if rows:
        is_class = "class" in rows[0]
        table = plain_table(
            "sample", *(("class", "probability") if is_class else ("answer",)), text=True
        )
        for row in rows:
            table.add_row(*map(escape, (row["sample"], *_answer(row))))
    else:
        table = plain_table("output", "shape", "least", "largest")
        for name, values in outputs.items():
            limits = (numbers.significant(float(value)) for value in (values.min(), values.max()))
            table.add_row(escape(name), " x ".join(map(str, values.shape)), *limits)
    console.print(table)


def _answer(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a sample's answer."""
    if "class" in row:
        return row["class"], _percent(row["probability"])
    if "values" in row:
        return (", ".join(map(numbers.significant, row["values"])),)
    if "boxes" in row:
        found = [f"{box['class']} {_percent(box['score'])}" for box in row["boxes"][:_MOST_BOXES]]
        more = len(row["boxes"]) - len(found)
        return (", ".join([*found, *([f"{more} more"] if more > 0 else [])]) or "no boxes",)
    shares = row.get("pixels") or row.get("classes") or {}
    return (", ".join(f"{name} {_percent(share)}" for name, share in shares.items()) or "none",)


def _times(percentiles: Percentiles) -> list[str]:
    return [
        numbers.significant(value) for value in (percentiles.p50, percentiles.p90, percentiles.p99)
    ]


def _described(manifest: EngineManifest) -> str:
    counts = manifest.precision
    layers = f"{counts.int8_layers} of {counts.weighted_layers} weighted layers in INT8"
    return f"{manifest.backend} {manifest.backend_version}, {layers}"


def _print_findings(console: Console, findings: Sequence[Finding]) -> None:
    for each in findings:
        style = _STYLES[each.severity]
        console.print(
            f"[{style}]{each.code} {each.severity}[/] {escape(each.node)}: {escape(each.message)}"
        )
        if each.advice:
            console.print(f"    {escape(each.advice)}")


def plain_table(*headings: str, text: bool = False) -> Table:
    """Return an empty table; columns after the first are numeric.

    With ``text``, they hold text.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(
            heading, justify="left" if place == 0 or text else "right", overflow="fold"
        )
    return table


def _console() -> Console:
    return Console(highlight=False)


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{share:.2%}"
