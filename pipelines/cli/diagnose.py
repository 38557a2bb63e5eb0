"""``qatline diagnose``: the layers that cost accuracy, with causes and fixes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from qat_lib.errors import ConfigError
from qatline.pipelines.cli.data_files import check_inputs
from qatline.pipelines.cli.options import (
    BackendOption,
    CalibratorOption,
    CpuOption,
    InputDataOption,
    JournalOption,
    JsonOption,
    SpecOption,
    print_json,
)

if TYPE_CHECKING:
    from qat_lib.core.spec import QuantizationSpec
    from qat_lib.keras.diagnosis import Diagnosis

MeasureName: TypeAlias = Literal["kl", "error"]


def diagnose_file(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL.keras", help="Quantized Keras model, or one in float."),
    ],
    data: InputDataOption,
    samples: Annotated[int, typer.Option(min=1, help="Samples to measure on.")] = 32,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 32,
    measure: Annotated[
        MeasureName | None,
        typer.Option(
            help="Effect on the outputs: KL divergence, or relative error.",
            show_default="kl for classifiers",
        ),
    ] = None,
    spec: SpecOption = None,
    calibrator: CalibratorOption = "percentile",
    backend: BackendOption = "auto",
    cpu: CpuOption = "auto",
    html: Annotated[
        Path | None, typer.Option(help="Write a page with a bar picture.", show_default=False)
    ] = None,
    save_spec: Annotated[
        Path | None,
        typer.Option(help="Write the changes as a YAML spec.", show_default=False),
    ] = None,
    journal: JournalOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show every layer and minor findings.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Find the layers that lose accuracy in INT8, with causes and fixes.

    A model in float is quantized first, as by qatline quantize without corrections.
    An interrupted diagnosis resumes where it stopped.
    """
    from qatline.pipelines.cli.quiet_import import import_tensorflow

    import_tensorflow()
    import qat_lib
    from qat_lib.files.output_files import check_output
    from qat_lib.keras.diagnosis import PLAIN, diagnosis_page
    from qatline.pipelines.cli import model_views
    from qatline.pipelines.cli.build_progress import build_progress

    read = [model, data, *filter(None, (spec,))]
    for written in filter(None, (html, save_spec, journal)):
        check_output(written, inputs=read)
    network = qat_lib.load_model(model)
    inputs = model_views.read_inputs(data)
    check_inputs(network, inputs, data)
    base = None if spec is None else qat_lib.QuantizationSpec.load(spec)
    recipe = replace(PLAIN, calibrator=calibrator, backend=backend, cpu=cpu)
    network = _quantized(network, inputs, recipe, base)
    with build_progress() as on_progress:
        found = qat_lib.diagnose(
            network,
            inputs,
            samples=samples,
            batch_size=batch_size,
            measure=measure,
            journal=journal or default_journal(model, "diagnosis"),
            on_progress=on_progress,
        )
    if html is not None:
        model_views.write_file(html, diagnosis_page(found))
    if save_spec is not None:
        model_views.write_file(save_spec, found.spec(base).to_yaml())
    if json_:
        print_json(found.to_dict())
    else:
        _show(found, every)


def default_journal(model: Path, what: str) -> Path:
    """Return the place of intermediate results: a hidden file next to the model."""
    return model.with_name(f".{model.stem}.{what}.state")


def _quantized(network: Any, inputs: Any, recipe: Any, spec: QuantizationSpec | None) -> Any:
    """Return the quantized form of a model.

    Raises:
        ConfigError: It is quantized, and a spec is given.
    """
    import qat_lib

    if not qat_lib.model_quantizers(network):
        return recipe.quantize(network, inputs, spec)
    if spec is not None:
        raise ConfigError(
            f"Expected --spec with a model in float. {network.name} is quantized already: leave it "
            "out, or give the float model."
        )
    return network


def _show(found: Diagnosis, every: bool) -> None:
    from qat_lib.keras.diagnosis.report import as_text

    typer.echo(as_text(found, every_layer=every))
