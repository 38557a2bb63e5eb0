"""The options of an export, and the lowering passes that they select.

A field of ``ExportOptions`` says all about an option: config and command line derive theirs from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from qat_lib.errors import ExportError
from qat_lib.options import Backend, FloatPrecision, WeightForm
from qat_lib.support.option_fields import OptionField, about, fields_of

OLDEST_OPSET = 13
"""QuantizeLinear has an axis since operator set 13."""

NEWEST_OPSET = 21
"""Newest operator set offered. tf2onnx writes up to 18; ONNX's version converter does the rest, on
the graph without weights. float16 Q/DQ scales need 19."""

HALF_OPSET = 19
INT4_OPSET = 21
"""DequantizeLinear takes INT4 since operator set 21."""
LARGEST_BATCH = 65_536


def option_fields() -> list[OptionField]:
    """Return the fields of ``ExportOptions`` in order."""
    return fields_of(ExportOptions)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How a graph is lowered; see ``qat_lib.keras.export.export.export_onnx`` for what each means.

    float16 raises ``opset`` to 19, INT4 weights to 21.

    Raises:
        ExportError: a value is not one of those allowed, or INT4 weights are wanted for TensorRT.
    """

    target: Backend = field(
        default="tensorrt", metadata=about("Backend that will run the file.", in_command=False)
    )
    opset: int = field(
        default=17, metadata=about("ONNX operator set.", least=OLDEST_OPSET, most=NEWEST_OPSET)
    )
    weights: WeightForm = field(
        default="int8",
        metadata=about(
            "int8: INT8 + DQ; qdq: FP32 + Q + DQ (TensorRT 8.6); int4: INT4 + DQ where weights have "
            "4 bits (not for TensorRT)."
        ),
    )
    float_precision: FloatPrecision = field(
        default="fp32",
        metadata=about("Precision of non-quantized layers (obeyed by TensorRT 10.12 and newer)."),
    )
    channels_first_input: bool = field(
        default=False,
        metadata=about("Convert image inputs to NCHW.", flag="--channels-first", in_config=False),
    )
    batch_size: int | None = field(
        default=None,
        metadata=about(
            "Fixed batch size (default: dynamic).", least=1, most=LARGEST_BATCH, in_config=False
        ),
    )
    embed_preprocessing: bool = field(
        default=False,
        metadata=about("Let the graph take raw images.", in_config=False, in_command=False),
    )

    def __post_init__(self) -> None:
        if self.float_precision == "fp16":
            object.__setattr__(self, "opset", max(self.opset, HALF_OPSET))
        if self.weights == "int4":
            object.__setattr__(self, "opset", max(self.opset, INT4_OPSET))
        for each in option_fields():
            value, allowed = getattr(self, each.name), get_args(each.kind)
            if get_origin(each.kind) is Literal and value not in allowed:
                raise ExportError(
                    f"Expected {each.name} to be one of {', '.join(allowed)}. Received: {value!r}."
                )
        if self.weights == "int4" and not _target_supports(self, "int4"):
            raise ExportError(
                "Expected weights=int8 or qdq for TensorRT, which has no convolution with INT4 "
                "weights. Received: int4. Export with target=openvino or onnxruntime, or with "
                "weights=int8, which stores integers of 4 bits in 8."
            )
        if self.batch_size is not None and (
            isinstance(self.batch_size, bool) or not 1 <= self.batch_size <= LARGEST_BATCH
        ):
            raise ExportError(
                f"Expected a batch size from 1 to {LARGEST_BATCH}, or None for an open one. "
                f"Received: {self.batch_size!r}."
            )


def _target_supports(options: ExportOptions, capability: Any) -> bool:
    from qat_lib.engines.backend import get_backend  # imports NumPy, for which --help has no time

    return get_backend(options.target).supports(capability)


def in_unsigned_graphs(options: ExportOptions) -> bool:
    """Run a pass in exports whose non-negative activations are UINT8."""
    return _target_supports(options, "unsigned_graphs")


@dataclass(frozen=True)
class Pass:
    """One pass in the sequence.

    Attributes:
        path: ``"<file>.<function>"`` in ``qat_lib/export/passes/``.
        when: whether an export of these options runs it. Default None: every export does.
        takes: what it takes after the model: ``"ranges"`` (range of each quantizer by its name),
            ``"preprocessing"`` or ``"layout"`` (order of the axes of image inputs). Default:
            nothing.
    """

    path: str
    when: Callable[[ExportOptions], bool] | None = None
    takes: tuple[str, ...] = ()

    @property
    def function(self) -> str:
        """Name of the pass."""
        return self.path.partition(".")[2]


PASSES = (
    Pass("loop_invariants.hoist_loop_invariants"),
    Pass("fold_constants.fold_constants"),
    Pass("identities.remove_identities"),
    Pass("output_padding.use_output_padding"),
    Pass("static_shapes.fix_reshape_targets"),
    Pass("resize.fix_resize_scales"),
    Pass("einsum.merge_einsum"),
    Pass("activation_ranges.write_activation_ranges", takes=("ranges",)),
    Pass("quantized_weights.store_quantized_weights", takes=("ranges",)),
    Pass(
        "io.embed_preprocessing",
        lambda options: options.embed_preprocessing,
        ("preprocessing", "layout"),
    ),
    Pass("nearest_resize.use_nearest_resize"),
    Pass("recover_prelu.recover_prelu"),
    Pass("batched_dense.merge_batched_dense"),
    Pass("layout.remove_transposes"),
    # Transposes that were moved onto constants.
    Pass("fold_constants.fold_constants"),
    Pass("pooling.use_global_pools"),
    Pass("flatten_order.reorder_flattened_weights"),
    Pass("squeezes.sink_squeezes"),
    Pass("singleton_reshapes.eliminate_singleton_reshapes"),
    Pass("recover_batchnorm.recover_batchnorm"),
    Pass("recover_layernorm.recover_layernorm"),
    Pass("bias.merge_bias"),
    Pass("fold_batchnorm.fold_batchnorm"),
    Pass("padding.merge_padding"),
    Pass("bounds.remove_redundant_bounds"),
    Pass("clips.write_clips"),
    Pass("pool_order.quantize_before_max_pools", in_unsigned_graphs),
    Pass("strides.hoist_strides", in_unsigned_graphs),
    Pass("unsigned.quantize_unsigned", in_unsigned_graphs),
    Pass("clamps.remove_redundant_clamps", in_unsigned_graphs),
    Pass("io.convert_inputs_to_nchw", lambda options: options.channels_first_input),
    Pass("float_weights.store_float_weights", lambda options: options.weights == "qdq"),
    Pass("int4_weights.store_int4_weights", lambda options: options.weights == "int4", ("ranges",)),
    Pass("half.convert_float_to_half", lambda options: options.float_precision == "fp16"),
    Pass("names.name_canonically"),
)
"""The passes in the order in which they run."""
