"""``qatline quantize``: place quantizers in one Keras file and calibrate them.

Without ``--output``, show the plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qat_lib.errors import ConfigError
from qat_lib.options import CalibratorName, Mode, Rounding
from qatline.pipelines.cli.data_files import check_inputs
from qatline.pipelines.cli.options import (
    BackendOption,
    CpuOption,
    JsonOption,
    SpecOption,
    print_json,
)


def quantize(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL.keras", help="Keras model in floating point.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Quantized model to write (default: only show the plan)."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="With --output: .npy of calibration inputs, as the model takes them."),
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="partial: only the layers that a spec or case names.")
    ] = "full",
    spec: SpecOption = None,
    case: Annotated[
        list[str] | None,
        typer.Option(help="Custom Q/DQ case (repeatable).", show_default="TensorRTQDQCase"),
    ] = None,
    calibrator: Annotated[
        CalibratorName | None,
        typer.Option(help="Calibration method.", show_default="auto"),
    ] = None,
    percentile: Annotated[
        float | None,
        typer.Option(
            min=50,
            max=100,
            help="Percentile of absolute values; implies --calibrator percentile.",
            show_default="99.99",
        ),
    ] = None,
    backend: BackendOption = "auto",
    cpu: CpuOption = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Calibration batch size.")] = 64,
    equalize: Annotated[
        bool | None,
        typer.Option(
            help="Apply cross-layer equalization first.",
            show_default="where a model with depthwise convolutions gains from it",
        ),
    ] = None,
    bias_correction: Annotated[bool, typer.Option(help="Apply bias correction.")] = True,
    rounding: Annotated[
        Rounding,
        typer.Option(help="Weight rounding: nearest, or AdaRound (recommended for 4 bits)."),
    ] = "nearest",
    save_plan: Annotated[
        Path | None, typer.Option(help="Write the plan as JSON.", show_default=False)
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Quantize and calibrate a Keras model, or show its quantization plan."""
    _check_together(output, data)
    from qatline.pipelines.cli.quiet_import import import_tensorflow

    import_tensorflow()
    import qat_lib
    from qat_lib.files.output_files import check_output
    from qatline.components.settings import QuantizationSettings
    from qatline.components.training.quantization_choice import open_cases, read_spec
    from qatline.pipelines.cli import model_views

    # Before the model is loaded: a wrong path fails at once.
    for written in filter(None, (output, save_plan)):
        check_output(written, inputs=[model, *filter(None, (data, spec))])
    settings = QuantizationSettings(
        mode=mode,
        spec=None if spec is None else str(spec),
        **({"cases": case} if case else {}),
    )
    recipe = qat_lib.PtqRecipe(
        mode=mode,
        cases=open_cases(settings),
        calibrator=calibrator,
        percentile=percentile,
        backend=backend,
        cpu=cpu,
        equalize="auto" if equalize is None else equalize,
        bias_correction=bias_correction,
        rounding=rounding,
        batch_size=batch_size,
    )
    network = qat_lib.load_model(model)
    inputs = None
    read = read_spec(settings)
    content: dict[str, Any] = {}
    if data is not None:
        inputs = model_views.read_inputs(data)
        check_inputs(network, inputs, data)
        # The plan is that of the equalized copy, if equalization helps.
        choice = recipe.prepare(network, inputs, read)
        network = choice.model
        content["equalized"] = {"applied": choice.applied, "reason": choice.reason}
    found = recipe.plan(network, read)
    content["plan"] = found.to_dict()
    report = None
    told = _say_rounded if rounding == "adaround" else None
    if output is not None:
        quantized = recipe.apply(network, found)
        report = recipe.calibrate(quantized, inputs)
        # AdaRound is slow: its finished layers survive an interruption.
        state = output.with_name(f".{output.name}.rounding.npz")
        corrected = recipe.correct(quantized, inputs, state=state, on_layer=told)
        for layer, reason in corrected.skipped.items() if told else ():
            typer.echo(f"rounded to nearest: {layer}: {reason}", err=True)
        model_views.write_model(output, quantized)
        state.unlink(missing_ok=True)
        content |= {"path": str(output), "samples": report.samples}
    if save_plan is not None:
        model_views.write_file(save_plan, found.to_json())
    if json_:
        print_json(content)
    else:
        if data is not None:
            typer.echo(f"equalized: {'yes' if choice.applied else 'no'}: {choice.reason}")
        model_views.show_quantization(found, output, report)


def _say_rounded(done: int, of: int) -> None:
    typer.echo(f"rounding: layer {done} of {of}", err=True)


def _check_together(output: Path | None, data: Path | None) -> None:
    if (output is None) != (data is None):
        raise ConfigError(
            "Expected --output and --data together: a quantized model gets its ranges from "
            "data. Give neither to see the plan."
        )
    if output is not None and output.suffix != ".keras":
        raise ConfigError(f"--output must end with .keras. Received: {output}.")
