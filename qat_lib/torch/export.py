"""export_onnx: export a PyTorch module to a verified ONNX file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx_ir as ir
from torch import nn

from qat_lib.core.plan import PlanLike
from qat_lib.errors import ExportError
from qat_lib.export.finish import ExportReport, Layout, choose_options, export_source
from qat_lib.export.options import ExportOptions
from qat_lib.export.ranges import RangeOwner
from qat_lib.export.self_check import ModelInput
from qat_lib.options import Backend, FloatPrecision, WeightForm
from qat_lib.preprocessing import AnyPreprocessing
from qat_lib.torch.capture import Example, bind_example, in_float32
from qat_lib.torch.convert import convert
from qat_lib.torch.naming import named_by_path
from qat_lib.torch.parity import ModuleReference
from qat_lib.torch.quantizers import read_quantizers


def export_onnx(
    module: Any,
    path: str | os.PathLike[str],
    *,
    example_input: Any,
    target: Backend = "tensorrt",
    opset: int = 17,
    weights: WeightForm = "int8",
    float_precision: FloatPrecision = "fp32",
    batch_size: int | None = None,
    preprocessing: AnyPreprocessing | None = None,
    embed_preprocessing: bool = False,
    metadata: Mapping[str, Any] | None = None,
    plan: PlanLike | None = None,
    options: ExportOptions | None = None,
) -> ExportReport:
    """Export a PyTorch module, quantized or not, to verified ONNX.

    The module is exported in inference mode with float32 semantics and is not changed. Inputs have
    the names of forward's arguments.

    Args:
        module: ``torch.nn.Module``.
        path: file to write, atomically.
        example_input: a tensor, a tuple of tensors (positional arguments) or a dict of tensors (by
            name), on the module's device. Only shapes and types matter; the first dimension of each
            is the batch.
        target: intended backend: ``"tensorrt"`` (default), ``"openvino"`` or ``"onnxruntime"``.
        opset: ONNX operator set, 13 to 21. Default 17. PyTorch writes 18; older sets lack some
            operators. ``float_precision="fp16"`` requires 19 and raises ``opset`` to it.
        weights: ``"int8"`` (default) stores quantized weights as INT8 + DequantizeLinear, a quarter
            of the size; ``"qdq"`` as FP32 + QuantizeLinear + DequantizeLinear, required by TensorRT
            up to 8.6; ``"int4"`` as ``"int8"``, but with INT4 for weights of at most 4 bits: it
            raises ``opset`` to 21 and excludes TensorRT.
        float_precision: precision of unquantized layers: ``"fp32"`` (default) or ``"fp16"``, for
            strongly typed TensorRT.
        batch_size: fixed batch size; None (default) leaves it open.
        preprocessing: preprocessing of raw images, recorded in the file. Its ``image_shape`` is
            (height, width, channels); the file takes NCHW.
        embed_preprocessing: whether the graph takes raw images (uint8, NCHW) and includes the
            preprocessing. Default False.
        metadata: additional metadata of the file, such as ``{"classes": [...], "accuracy": 0.98}``;
            values other than text are written as JSON.
        plan: quantization plan for the verification, its dict form, or the path of its JSON; its
            digest is recorded in the file. Default None: verification against the module's
            quantizers.
        options: all lowering options above as one value; default None: the keywords.
            ``channels_first_input`` is not supported.

    Returns:
        Report of the export.

    Raises:
        UnsupportedModelError: ``module`` is not a module.
        ConfigError: ``path`` is not a valid output path.
        ExportError: an option is wrong, the example does not fit, a quantizer has no range, or
            PyTorch can't capture or convert the module, or the operator set can't express it.
        VerificationError: the written graph contradicts the module or the plan, or has different
            outputs on random inputs; the file is removed.

    Examples:
        >>> import torch, qat_lib.torch
        >>> module = torch.nn.Conv2d(1, 4, 3)
        >>> example = torch.zeros(1, 1, 8, 8)
        >>> qat_lib.torch.export_onnx(module, "float.onnx", example_input=example).opset
        17
    """
    keywords = ExportOptions(
        target=target,
        opset=opset,
        weights=weights,
        float_precision=float_precision,
        batch_size=batch_size,
        embed_preprocessing=embed_preprocessing,
    )
    chosen = choose_options(options, keywords)
    if chosen.channels_first_input:
        raise ExportError(
            "Expected channels_first_input=False: images of PyTorch have their channels first "
            "already. Received: True."
        )
    stored = in_float32(module)
    example = Example.of(example_input, batch=chosen.batch_size)
    with named_by_path(stored):
        return export_source(
            ModuleSource(stored, example),
            path,
            options=chosen,
            preprocessing=preprocessing,
            metadata=metadata,
            plan=plan,
        )


@dataclass(frozen=True)
class ModuleSource:
    """A module to export.

    Args:
        module: module with float32 weights and named quantizers.
        example: its arguments.
    """

    module: nn.Module
    example: Example
    layout: ClassVar[Layout] = "NCHW"

    def quantizers(self) -> Sequence[RangeOwner]:
        """Return the quantizers of the module."""
        return read_quantizers(self.module, self.example)

    def convert(self, options: ExportOptions) -> ir.Model:
        """Return the graph from PyTorch's exporter."""
        return convert(self.module, self.example, opset=options.opset, batch=options.batch_size)

    def inputs(self) -> Sequence[ModelInput]:
        """Return the inputs in order; integer inputs keep the values of the example."""
        found = []
        for x in self._in_order().tensors():
            array = x.cpu().numpy()
            values = array if array.dtype.kind in "iub" else None
            found.append(
                ModelInput(shape=tuple(array.shape), dtype=array.dtype.name, values=values)
            )
        return found

    def reference(self, layers: list[str]) -> ModuleReference:
        """Return the reference for comparisons."""
        return ModuleReference(self.module, layers, self._in_order())

    def _in_order(self) -> Example:
        """Return the arguments in the order of forward's signature, like the graph's inputs."""
        bound = bind_example(self.module, self.example)
        return Example(args=bound.args, kwargs=bound.kwargs)
