"""Export of a Keras model to a verified ONNX file."""

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
from qat_lib.keras.export.keras_reference import KerasReference
from qat_lib.keras.export.precision import OTHER_FLOATS
from qat_lib.keras.structure import functional_of, layers_of
from qat_lib.options import Backend, FloatPrecision, WeightForm
from qat_lib.preprocessing import AnyPreprocessing


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
    preprocessing: AnyPreprocessing | None = None,
    embed_preprocessing: bool = False,
    metadata: Mapping[str, Any] | None = None,
    plan: PlanLike | None = None,
    options: ExportOptions | None = None,
) -> ExportReport:
    """Export a Keras model, quantized or not, to ONNX and verify the result.

    Args:
        model: built Keras Functional or Sequential model.
        path: file to write; the write is atomic.
        target: engine backend of the file: ``"tensorrt"`` (default), ``"openvino"`` or
            ``"onnxruntime"``.
        opset: ONNX operator set, 13 to 21. Default 17. ``float_precision="fp16"`` requires 19, and
            raises it if necessary.
        weights: ``"int8"`` (default) stores quantized weights as INT8 + DequantizeLinear, a quarter
            of the size. ``"qdq"`` stores FP32 + QuantizeLinear + DequantizeLinear, as required by
            TensorRT up to 8.6. ``"int4"`` is like ``"int8"``, but with INT4 for weights of at most
            4 bits; it raises ``opset`` to 21, and TensorRT does not support it.
        float_precision: precision of unquantized layers: ``"fp32"`` (default) or ``"fp16"``, for
            strongly typed TensorRT.
        channels_first_input: whether image inputs are NCHW instead of Keras's NHWC. Default False.
        batch_size: fixed batch size; None (default) leaves it open.
        preprocessing: conversion of raw images to model inputs, recorded in the file.
        embed_preprocessing: whether the graph accepts raw images (uint8) and includes the
            preprocessing. Default False.
        metadata: further metadata entries of the file, such as ``{"classes": [...], "accuracy":
            0.98}``; values other than text are written as JSON.
        plan: quantization plan to verify the file against, as an object, a dict, or the path of a
            JSON file; its digest is recorded in the file. Default None: the file is verified
            against the quantizers of the model.
        options: all lowering options above as one value; None (default) uses the keywords. Custom
            options have no keyword.

    Returns:
        A report on the written file.

    Raises:
        UnsupportedModelError: the model has no graph of layers.
        ConfigError: the path is not usable as an output file.
        ExportError: an option is invalid, or the model can't be expressed in ONNX or for the
            target, such as unsigned integers for TensorRT.
        VerificationError: the written graph differs from the model and the plan, or has other
            outputs than the model on random inputs; no file is written.

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
        """Return the built quantizers of the model."""
        return built_quantizers(self.model)

    def convert(self, options: ExportOptions) -> ir.Model:
        """Return the graph of the model, converted by tf2onnx."""
        return convert(self.model, opset=options.opset, batch=options.batch_size)

    def inputs(self) -> Sequence[ModelInput]:
        """Return the inputs of the model in order."""
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
        """Return the reference for a parity check."""
        return KerasReference(self.model, layers)


def built_quantizers(model: Any) -> list[RangeOwner]:
    """Return the built quantizers of a Keras model, including those inside wrappers."""
    from qat_lib.keras.quantizers import TensorQuantizer

    layers = layers_of(model)
    return [layer for layer in layers if isinstance(layer, TensorQuantizer) and layer.built]
