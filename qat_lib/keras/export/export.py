"""export_onnx: a Keras model to a verified ONNX file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx_ir as ir

from qat_lib.core.plan import PlanLike
from qat_lib.export.finish import ExportReport, Layout, choose_options, export_source
from qat_lib.export.options import ExportOptions
from qat_lib.export.ranges import RangeOwner
from qat_lib.export.self_check import ModelInput
from qat_lib.keras.export.convert import convert
from qat_lib.keras.export.keras_quantizers import built_quantizers
from qat_lib.keras.export.keras_reference import KerasReference
from qat_lib.keras.export.precision import OTHER_FLOATS
from qat_lib.keras.structure import functional_of
from qat_lib.options import Backend, FloatPrecision, WeightForm
from qat_lib.preprocessing import Preprocessing


def export_onnx(
    model: Any,
    path: str | os.PathLike[str],
    *,
    target: Backend = "tensorrt",
    opset: int = 17,
    weights: WeightForm = "int8",
    float_precision: FloatPrecision = "fp32",
    channels_first_input: bool = False,
    batch_size: int | None = None,
    preprocessing: Preprocessing | None = None,
    embed_preprocessing: bool = False,
    metadata: Mapping[str, Any] | None = None,
    plan: PlanLike | None = None,
    options: ExportOptions | None = None,
) -> ExportReport:
    """Export a Keras model to ONNX and verify the result.

    The model may be quantized or not.

    Args:
        model: built Keras Functional or Sequential model.
        path: file to write; it appears whole or not at all.
        target: what the file is for: ``"tensorrt"`` (default), ``"openvino"`` or ``"onnxruntime"``.
        opset: ONNX operator set, 13 to 21. Default 17. ``float_precision="fp16"`` needs, and
            raises it to, 19.
        weights: ``"int8"`` (default) stores quantized weights as INT8 + DequantizeLinear, a quarter
            of the size; ``"qdq"`` as FP32 + QuantizeLinear + DequantizeLinear, which TensorRT up to
            8.6 needs; ``"int4"`` as ``"int8"``, but with INT4 for weights of 4 bits and fewer, which
            raises ``opset`` to 21 and is not for TensorRT.
        float_precision: precision of non-quantized layers: ``"fp32"`` (default) or ``"fp16"``, for
            strongly typed TensorRT.
        channels_first_input: whether image inputs are NCHW instead of Keras's NHWC. Default False.
        batch_size: fixed batch size; None (default) leaves it open.
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

    Returns:
        What was written.

    Raises:
        UnsupportedModelError: the model has no graph of layers.
        ConfigError: the path is no place for a file.
        ExportError: an option is wrong, or something can't be said in ONNX or, such as unsigned
            integers, in TensorRT.
        VerificationError: the written graph is not what the model and the plan say, or gives other
            outputs than the model on random inputs; no file is left.

    Examples:
        >>> import keras, qat_lib
        >>> x = keras.Input((8, 8, 1))
        >>> model = keras.Model(x, keras.layers.Conv2D(4, 3)(x))
        >>> qat_lib.export_onnx(model, "float.onnx").opset
        17
    """
    keywords = ExportOptions(
        target=target,
        opset=opset,
        weights=weights,
        float_precision=float_precision,
        channels_first_input=channels_first_input,
        batch_size=batch_size,
        embed_preprocessing=embed_preprocessing,
    )
    return export_source(
        KerasSource(model),
        path,
        options=choose_options(options, keywords),
        preprocessing=preprocessing,
        metadata=metadata,
        plan=plan,
    )


@dataclass(frozen=True)
class KerasSource:
    """A Keras model to export.

    Args:
        model: built Keras Functional or Sequential model.
    """

    model: Any
    layout: ClassVar[Layout] = "NHWC"

    def quantizers(self) -> Sequence[RangeOwner]:
        """Return its quantizers that are built."""
        return built_quantizers(self.model)

    def convert(self, options: ExportOptions) -> ir.Model:
        """Return its graph, converted by tf2onnx."""
        return convert(self.model, opset=options.opset, batch=options.batch_size)

    def inputs(self) -> Sequence[ModelInput]:
        """Return its inputs in order."""
        found = []
        for x in functional_of(self.model).inputs:
            dtype = str(x.dtype)
            found.append(
                ModelInput(
                    shape=tuple(x.shape), dtype="float32" if dtype in OTHER_FLOATS else dtype
                )
            )
        return found

    def reference(self, layers: list[str]) -> KerasReference:
        """Return the model to compare with."""
        return KerasReference(self.model, layers)
