"""The lowering passes: one file each, each a pure function from model to model.

:data:`PASSES` is the sequence in which an export runs them; a pass is an attribute of this package
by the name of its function, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from qat_lib.export.options import ExportOptions


def for_openvino(options: ExportOptions) -> bool:
    """Run a pass in exports for OpenVINO."""
    return options.target == "openvino"


@dataclass(frozen=True)
class Pass:
    """One pass in the sequence.

    Attributes:
        path: ``"<file>.<function>"`` in this package.
        when: whether an export of these options runs it. Default None: every export does.
        takes: what it takes after the model: ``"ranges"`` (range of each quantizer by its name) or
            ``"preprocessing"``. Default: nothing.
    """

    path: str
    when: Callable[[ExportOptions], bool] | None = None
    takes: tuple[str, ...] = ()

    @property
    def function(self) -> str:
        """Name of the pass."""
        return self.path.partition(".")[2]


PASSES = (
    Pass("fold_constants.fold_constants"),
    Pass("identities.remove_identities"),
    Pass("output_padding.use_output_padding"),
    Pass("static_shapes.fix_reshape_targets"),
    Pass("resize.fix_resize_scales"),
    Pass("einsum.merge_einsum"),
    Pass("activation_ranges.write_activation_ranges", takes=("ranges",)),
    Pass("quantized_weights.store_quantized_weights", takes=("ranges",)),
    Pass("io.embed_preprocessing", lambda options: options.embed_preprocessing, ("preprocessing",)),
    Pass("nearest_resize.use_nearest_resize"),
    Pass("recover_prelu.recover_prelu"),
    Pass("batched_dense.merge_batched_dense"),
    Pass("layout.remove_transposes"),
    # Transposes that were moved onto constants.
    Pass("fold_constants.fold_constants"),
    Pass("pooling.use_global_pools"),
    Pass("flatten_order.reorder_flattened_weights"),
    Pass("singleton_reshapes.eliminate_singleton_reshapes"),
    Pass("recover_batchnorm.recover_batchnorm"),
    Pass("recover_layernorm.recover_layernorm"),
    Pass("bias.merge_bias"),
    Pass("fold_batchnorm.fold_batchnorm"),
    Pass("padding.merge_padding"),
    Pass("pool_order.quantize_before_max_pools", for_openvino),
    Pass("strides.hoist_strides", for_openvino),
    Pass("unsigned.quantize_unsigned", for_openvino),
    Pass("clamps.remove_redundant_clamps", for_openvino),
    Pass("io.convert_inputs_to_nchw", lambda options: options.channels_first_input),
    Pass("float_weights.store_float_weights", lambda options: options.weights == "qdq"),
    Pass("half.convert_float_to_half", lambda options: options.float_precision == "fp16"),
    Pass("names.name_canonically"),
)


def _load(each: Pass) -> Any:
    module, function = each.path.split(".")
    return getattr(import_module(f"{__name__}.{module}"), function)


# At once: a file that is imported later would take the place of a function of the same name.
globals().update({each.function: _load(each) for each in PASSES})
