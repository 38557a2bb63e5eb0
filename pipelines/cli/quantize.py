"""``qatline quantize``: place quantizers in one Keras file and calibrate them.

Without ``--output``, show the plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.cli.errors import reported
from pipelines.cli.options import DebugOption, JsonOption, print_json
from qat_lib.options import CalibratorName, Mode

_BLOCK = 256  # samples looked at together


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
    spec: Annotated[
        Path | None, typer.Option(help="YAML file of QuantizationSpec entries.", show_default=False)
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(help="Custom Q/DQ case (repeatable).", show_default="TensorRTQDQCase"),
    ] = None,
    calibrator: Annotated[
        CalibratorName, typer.Option(help="Method that chooses the ranges.")
    ] = "percentile",
    percentile: Annotated[
        float, typer.Option(min=50, max=100, help="Percentile of absolute values.")
    ] = 99.99,
    unsigned: Annotated[
        bool,
        typer.Option(
            "--unsigned", help="Unsigned INT8 for non-negative activations (not TensorRT)."
        ),
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Calibration batch size.")] = 64,
    plan: Annotated[
        Path | None, typer.Option(help="Write the plan as JSON.", show_default=False)
    ] = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Quantize and calibrate a Keras model, or show its quantization plan."""
    with reported(debug=debug, as_json=json_):
        from pipelines.cli.quiet_import import import_tensorflow

        import_tensorflow()
        import qat_lib
        from components.settings import QuantizationSettings
        from components.training.quantization_choice import open_cases, read_spec
        from pipelines.cli import model_views
        from qat_lib.errors import ConfigError
        from qat_lib.files.output_files import check_output

        if (output is None) != (data is None):
            raise ConfigError(
                "Expected --output and --data together: a quantized model gets its ranges from "
                "data. Give neither to see the plan."
            )
        if output is not None and output.suffix != ".keras":
            raise ConfigError(f"--output must end with .keras. Received: {output}.")
        for written in filter(None, (output, plan)):
            check_output(written, inputs=[model, *filter(None, (data, spec))])
        settings = QuantizationSettings(
            mode=mode,
            spec=None if spec is None else str(spec),
            **({"cases": case} if case else {}),
        )
        network = qat_lib.load_model(model)
        found = qat_lib.plan_quantization(
            network, mode, read_spec(settings), open_cases(settings), unsigned=unsigned
        )
        content: dict[str, Any] = {"plan": found.to_dict()}
        report = None
        if output is not None and data is not None:
            inputs = model_views.read_inputs(data)
            check_inputs(network, inputs, data)
            quantized = qat_lib.apply_plan(network, found)
            report = qat_lib.calibrate(
                quantized,
                inputs,
                calibrator,
                percentile=percentile,
                batch_size=batch_size,
                freeze=True,
            )
            model_views.write_model(output, quantized)
            content |= {"path": str(output), "samples": report.samples}
        if plan is not None:
            model_views.write_file(plan, found.to_json())
        if json_:
            print_json(content)
        else:
            model_views.show_quantization(found, output, report)


def check_inputs(model: Any, inputs: Any, path: Path) -> None:
    """Check that an array can be fed to a model.

    Raises:
        DataError: The model has several inputs, or the array has another shape, no samples, or a
            value that is not finite.
    """
    from qat_lib.errors import DataError

    if len(model.inputs) != 1:
        raise DataError(
            f"{model.name} has {len(model.inputs)} inputs, a .npy holds one: calibrate it in "
            "Python."
        )
    expected = tuple(model.inputs[0].shape)
    fits = len(expected) == inputs.ndim and all(
        want in (None, got) for want, got in zip(expected[1:], inputs.shape[1:], strict=True)
    )
    if inputs.dtype.kind not in "biuf":
        raise DataError(
            f"Expected model inputs that are numbers. Received {inputs.dtype} in {path}."
        )
    if not fits:
        shape = "x".join("n" if size is None else str(size) for size in expected)
        raise DataError(
            f"Expected model inputs of shape {shape}, as {model.name} takes them. "
            f"Received {'x'.join(map(str, inputs.shape))} in {path}."
        )
    if not len(inputs):
        raise DataError(f"Expected at least one sample. Received an array without any in {path}.")
    if not _all_finite(inputs):
        raise DataError(
            f"Expected model inputs that are finite in float32. Received NaN or infinity in {path}."
        )


def _all_finite(inputs: Any) -> bool:
    """Whether every value is a number in float32, in blocks.

    The array may be a file larger than the memory.
    """
    import numpy as np

    blocks = (inputs[start : start + _BLOCK] for start in range(0, len(inputs), _BLOCK))
    with np.errstate(over="ignore"):
        return all(np.isfinite(block.astype(np.float32)).all() for block in blocks)
