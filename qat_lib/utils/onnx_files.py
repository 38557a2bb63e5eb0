"""Convert saved models to ONNX files, under the toolkit's function names."""

from __future__ import annotations

import copy
import logging
import os
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from qat_lib.errors import ExportError
from qat_lib.files.whole_files import folder_beside, place_files, written_beside

logger = logging.getLogger("qat_lib")

Form: TypeAlias = Literal["toolkit", "qatline"]

OPSET = 13
"""The toolkit's operator set, the oldest with per-channel scales in QuantizeLinear."""


def convert_keras_model_to_onnx(
    keras_model: Any,
    onnx_model_path: str | os.PathLike[str],
    opset: int = OPSET,
    *,
    form: Form = "toolkit",
) -> None:
    """Convert a Keras model to an ONNX file in the toolkit's form.

    The form serves comparison with the toolkit's files. For engines use
    ``qat_lib.export.export_onnx``, the basis of this function, with more options.

    Args:
        keras_model: built Functional or Sequential model.
        onnx_model_path: file to write; missing folders are created.
        opset: ONNX operator set, 13 (default) to 21.
        form: ``"toolkit"`` (default): a Q/DQ pair for each reader of a tensor, a Dense layer as
            MatMul and Add, tf2onnx names of Q and DQ nodes; or ``"qatline"``: the graph of
            ``export_onnx``.

    Raises:
        ExportError: the model can't be expressed in ONNX, or ``form`` is unknown.
        VerificationError: the written graph differs from the model; the file is removed.
    """
    from qat_lib.keras.export import export_onnx

    _check_form(form)
    target = Path(onnx_model_path)
    if form == "qatline":
        export_onnx(keras_model, target, opset=opset)
        return
    with folder_beside(target) as folder:
        draft = folder / target.name
        export_onnx(keras_model, draft, opset=opset)
        _rewrite(draft)
        place_files(folder, target)


def _check_form(form: str) -> None:
    if form not in get_args(Form):
        raise ExportError(
            f"Expected form to be one of {', '.join(get_args(Form))}. Received: {form!r}."
        )


def _rewrite(path: Path) -> None:
    import onnx

    from qat_lib.utils.toolkit_form import to_toolkit_form

    try:
        path.write_bytes(to_toolkit_form(onnx.load(str(path))).SerializeToString())
    except ValueError as error:  # protobuf's limit
        raise ExportError(
            f"Expected a model of less than 2 GB for the toolkit's form: {error}. Use qat_lib.export_onnx."
        ) from error


def convert_saved_model_to_onnx(
    saved_model_dir: str | os.PathLike[str],
    onnx_model_path: str | os.PathLike[str],
    opset: int = OPSET,
    *,
    form: Form = "toolkit",
) -> None:
    """Convert a saved model to an ONNX file in the toolkit's form.

    Args:
        saved_model_dir: a ``.keras`` file, converted by ``convert_keras_model_to_onnx``; or a
            TensorFlow SavedModel folder, as written by ``model.export(folder)`` and older Keras
            versions, converted by tf2onnx without its Q/DQ optimizers, so that TensorRT sees
            every Q/DQ pair.
        onnx_model_path: file to write; missing folders are created.
        opset: ONNX operator set. Default 13.
        form: see ``convert_keras_model_to_onnx``; a SavedModel folder supports the toolkit's
            form only.

    Raises:
        UnsupportedModelError: the ``.keras`` file can't be loaded.
        ExportError: the path contains no model, the model can't be expressed in ONNX, or ``form``
            is not supported; or the folder contains a model quantized by this library (a SavedModel
            loses the names of quantizers, so save the model as a ``.keras`` file).
    """
    _check_form(form)
    source = Path(saved_model_dir)
    if source.is_file():
        from qat_lib.keras.loading import load_model

        convert_keras_model_to_onnx(load_model(source), onnx_model_path, opset, form=form)
        return
    if not (source / "saved_model.pb").is_file():
        raise ExportError(
            f"Expected a .keras file or a SavedModel folder. Received: {str(source)!r}, which is neither. "
            "Save the model there first."
        )
    if form != "toolkit":
        raise ExportError(
            f"Expected form='toolkit' for a SavedModel folder. Received: {form!r}. Save the model "
            "as a .keras file."
        )
    _convert_folder(source, Path(onnx_model_path), opset)


def _convert_folder(source: Path, target: Path, opset: int) -> None:
    import tensorflow as tf
    from tf2onnx import optimizer, tf_loader, tfonnx

    graph_def, inputs, outputs = tf_loader.from_saved_model(
        str(source), None, None, tag=["serve"], signatures=["serving_default"]
    )
    _refuse_plain_quantizers(source, graph_def)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        try:
            converted = tfonnx.process_tf_graph(
                graph,
                opset=opset,
                input_names=inputs,
                output_names=outputs,
                continue_on_error=False,
            )
        except Exception as error:  # tf2onnx raises bare exceptions of many types.
            raise ExportError(
                f"tf2onnx could not convert {str(source)!r} to operator set {opset}: {error}."
            ) from error
    # Both passes move DQ nodes across other operators, away from the layers that read them.
    passes = copy.copy(optimizer._optimizers)
    for name in ("q_dq_optimizer", "const_dequantize_optimizer"):
        passes.pop(name, None)
    proto = optimizer.optimize_graph(converted, optimizers=passes).make_model("qatline")
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_beside(target) as draft:
        draft.write_bytes(proto.SerializeToString())
    logger.info("Wrote %s.", target)


def _refuse_plain_quantizers(source: Path, graph_def: Any) -> None:
    """Reject a graph with quantizers of this library.

    Each quantizer is plain arithmetic around a rounding operator, inside of a condition in older
    versions.
    """
    rounding = ("If", "StatelessIf", "Round", "QuantizeAndDequantizeV4")
    names = [
        node.name for node in graph_def.node if node.op in rounding and "_quantizer" in node.name
    ]
    if names:
        raise ExportError(
            f"The SavedModel {str(source)!r} holds {len(names)} quantizers as plain arithmetic, which would give no "
            "Q/DQ pair. Save the quantized model as a .keras file and convert that."
        )
