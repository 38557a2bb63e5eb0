"""Options of an export, and the lowering passes selected by them.

The fields of ``ExportOptions`` define the options completely: config and command line are derived
from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from qat_lib.errors import ExportError
from qat_lib.options import Backend, FloatPrecision, WeightForm
from qat_lib.support.option_fields import OptionField, about, fields_of

OLDEST_OPSET = 13
"""Oldest supported operator set, the first with an axis in QuantizeLinear."""

NEWEST_OPSET = 21
"""Newest supported operator set.

tf2onnx writes up to 18; ONNX's version converter raises the graph without weights further. float16
scales of Q and DQ require 19."""

HALF_OPSET = 19
INT4_OPSET = 21
"""First operator set with INT4 inputs of DequantizeLinear."""
LARGEST_BATCH = 65_536


def option_fields() -> list[OptionField]:
    """Return the fields of ``ExportOptions`` in order."""
    return fields_of(ExportOptions)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of the lowering, explained in ``qat_lib.keras.export.export.export_onnx``.

    float16 raises ``opset`` to 19, INT4 weights to 21.

    Raises:
        ExportError: a value is not allowed, or INT4 weights are requested for TensorRT.
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
            # The dataclass is frozen, and only its own __post_init__ may adjust a field.
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
    from qat_lib.engines.backend import get_backend  # Imports NumPy, which would slow down --help.

    return get_backend(options.target).supports(capability)


def in_unsigned_graphs(options: ExportOptions) -> bool:
    """Return whether non-negative activations of the export are UINT8."""
    return _target_supports(options, "unsigned_graphs")


@dataclass(frozen=True)
class Pass:
    """One pass in the sequence.

    Attributes:
        path: ``"<file>.<function>"`` in ``qat_lib/export/passes/``.
        when: returns whether an export with these options runs the pass. Default None: every
            export.
        takes: arguments after the model: ``"ranges"`` (range of each quantizer by name),
            ``"preprocessing"`` or ``"layout"`` (axis order of image inputs). Default: none.
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
    Pass("depth_to_space.merge_depth_to_space"),
    Pass("layout.remove_transposes"),
    # A second time, for Transposes that `remove_transposes` has moved onto constants.
    Pass("fold_constants.fold_constants"),
    Pass("pooling.use_global_pools"),
    Pass("flatten_order.reorder_flattened_weights"),
    Pass("squeezes.sink_squeezes"),
    Pass("singleton_reshapes.eliminate_singleton_reshapes"),
    # After the layout passes: BatchNormalization requires the channels in axis 1.
    Pass("recover_batchnorm.recover_batchnorm"),
    Pass("recover_layernorm.recover_layernorm"),
    Pass("bias.merge_bias"),
    # After `merge_bias`, so that a bias between layer and normalization is folded, too.
    Pass("fold_batchnorm.fold_batchnorm"),
    Pass("padding.merge_padding"),
    Pass("bounds.remove_redundant_bounds"),
    Pass("clips.write_clips"),
    Pass("quantize_order.rectify_early", in_unsigned_graphs),
    Pass("quantize_order.quantize_early", in_unsigned_graphs),
    Pass("strides.hoist_strides", in_unsigned_graphs),
    Pass("unsigned.quantize_unsigned", in_unsigned_graphs),
    # A second time, for the types that `quantize_unsigned` has changed.
    Pass("bounds.remove_redundant_bounds", in_unsigned_graphs),
    Pass("io.convert_inputs_to_nchw", lambda options: options.channels_first_input),
    Pass("float_weights.store_float_weights", lambda options: options.weights == "qdq"),
    Pass("int4_weights.store_int4_weights", lambda options: options.weights == "int4", ("ranges",)),
    Pass("half.convert_float_to_half", lambda options: options.float_precision == "fp16"),
    # Last, because passes add and remove nodes.
    Pass("names.name_canonically"),
)
"""Passes in execution order."""
