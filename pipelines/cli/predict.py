"""``qatline predict``: outputs of any kind of model for arrays or image files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from qat_lib.errors import ConfigError, DataError
from qatline.pipelines.cli.options import JsonOption, print_json

Arrays = dict[str, Any]

_SHOWN = 20


def predict_file(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Keras model, ONNX file, or engine with manifest."),
    ],
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help=".npy of inputs, .npz of several by name, an image, or a folder of images.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help=".npz of the outputs to write.", show_default=False),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 32,
    json_: JsonOption = False,
) -> None:
    """Run a model on files, and show the classes or the outputs.

    Images need the preprocessing that engines and ONNX files of qatline record.
    """
    from qat_lib.files.output_files import check_output
    from qatline.components.client.decoding import answers

    if output is not None:
        if output.suffix != ".npz":
            raise ConfigError(f"--output must end with .npz. Received: {output}.")
        check_output(output, inputs=[model, data])
    names, outputs, decoding = _run(model, data, batch_size)
    if output is not None:
        _write(output, outputs)
    rows = [
        {"sample": name, **answer}
        for name, answer in zip(names, answers(decoding, outputs) if decoding else (), strict=False)
    ]
    if json_:
        shapes = {name: list(values.shape) for name, values in outputs.items()}
        print_json({"model": str(model), "outputs": shapes, "predictions": rows})
        return
    from qatline.pipelines.cli import model_views

    model_views.show_predictions(rows[:_SHOWN], outputs)
    if len(rows) > _SHOWN:
        typer.echo(f"... and {len(rows) - _SHOWN} more: see --json")
    if output is not None:
        typer.echo(f"Wrote {output}")


def _run(
    model: Path, data: Path, batch_size: int
) -> tuple[Sequence[str], Arrays, Mapping[str, Any] | None]:
    """Return the names of the samples, the outputs by name, and their decoding.

    Raises:
        DataError: The data does not fit the model, or the model records no preprocessing for
            images.
        EngineLoadError, ExportError: The file can't be used.
    """
    from qatline.pipelines.cli import model_views
    from qatline.pipelines.cli.data_files import check_inputs
    from qatline.pipelines.cli.evaluation import opened

    is_array = data.suffix in (".npy", ".npz")
    if model.suffix == ".keras":
        from qatline.pipelines.cli.quiet_import import import_tensorflow

        import_tensorflow()
        import qat_lib
        from qatline.components.training.fitting import predict

        if not is_array:
            raise DataError(
                f"Expected .npy or .npz inputs for {model}: a Keras file records no preprocessing. "
                f"Received {data}. Give an engine or ONNX file of qatline for images."
            )
        network = qat_lib.load_model(model)
        inputs = model_views.read_inputs(data)
        check_inputs(network, inputs, data)
        outputs = _collect(
            _batches(inputs, batch_size),
            lambda batch: next(iter(predict(network, [_as_float(batch)]))),
            list(network.output_names),
        )
        return _numbers(outputs), outputs, _guessed(outputs, ())
    arrays = model_views.read_inputs(data) if is_array else None
    with opened(model, batch_size, () if arrays is None else _sample_shapes(arrays)) as engine:
        from qatline.components.evaluation.inference import EngineRunner

        names: Sequence[str] = ()
        inputs = arrays
        if inputs is None:
            names, inputs = _images(data, engine.manifest)
        runner = EngineRunner(engine, _sample_shapes(inputs), raw=True)
        outputs = _collect(
            _batches(inputs, batch_size),
            lambda batch: runner(runner.as_taken(batch)),
            [info.name for info in engine.outputs],
        )
        decoding = engine.manifest.decoding or _guessed(outputs, engine.manifest.classes)
        return names or _numbers(outputs), outputs, decoding


def _sample_shapes(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: x.shape[1:] for name, x in inputs.items()}
    return inputs.shape[1:]


def _images(data: Path, manifest: Any) -> tuple[list[str], Any]:
    """Return names and model inputs of an image file, or of all below a folder."""
    import numpy as np

    from qat_lib.preprocessing import Preprocessing
    from qatline.components.data.folder_listing import list_files
    from qatline.components.data.images import load_image

    if manifest.preprocessing is None or "inputs" in manifest.preprocessing:
        raise DataError(
            f"Expected .npy or .npz inputs: the model records no preprocessing of images. Received "
            f"{data}. Export it with preprocessing, or preprocess the images yourself."
        )
    form = Preprocessing.from_dict(manifest.preprocessing)
    names = list_files(data) if data.is_dir() else [str(data)]
    root = data if data.is_dir() else Path()
    size = form.image_shape[:2] if form.resize else None
    raw = [load_image(root / name, form.color, size) for name in names]  # type: ignore[arg-type]
    for name, image in zip(names, raw, strict=True):
        if image.shape != form.image_shape:
            raise DataError(
                f"Expected images of shape {form.image_shape}, as the model takes them. Received "
                f"{image.shape} in {name}."
            )
    # The engine converts raw images itself if its graph contains the preprocessing.
    stacked = np.stack(raw)
    return names, stacked if manifest.preprocessing_embedded else form.apply(stacked)


def _batches(inputs: Any, size: int) -> Iterator[Any]:
    several = isinstance(inputs, Mapping)
    count = len(next(iter(inputs.values())) if several else inputs)
    for start in range(0, count, size):
        if several:
            yield {name: x[start : start + size] for name, x in inputs.items()}
        else:
            yield inputs[start : start + size]


def _as_float(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {name: x.astype("float32") for name, x in batch.items()}
    return batch.astype("float32")


def _collect(batches: Iterator[Any], run: Callable[[Any], Any], names: Sequence[str]) -> Arrays:
    """Return the outputs of all batches by name."""
    import numpy as np

    parts = []
    for batch in batches:
        found = run(batch)
        parts.append(found if isinstance(found, Mapping) else {names[0]: found})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _numbers(outputs: Arrays) -> list[str]:
    return [str(index) for index in range(len(next(iter(outputs.values()))))]


def _guessed(outputs: Arrays, classes: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the decoding of a classifier for files that record none."""
    from qatline.components.tasks.classification import are_distributions

    (values, *more) = outputs.values()
    if more or values.ndim != 2 or values.shape[1] < 2:
        return None
    known = bool(are_distributions(values).all())
    return {"kind": "classification", "classes": classes, "probabilities": known}


def _write(path: Path, outputs: Arrays) -> None:
    """Write arrays, whole or not at all.

    Raises:
        ConfigError: They can't be written there.
    """
    import numpy as np

    from qat_lib.files.whole_files import written_beside

    try:
        with written_beside(path) as beside, beside.open("wb") as stream:
            np.savez(stream, **outputs)
    except OSError as error:
        raise ConfigError(f"Could not write {path}: {error}") from error
