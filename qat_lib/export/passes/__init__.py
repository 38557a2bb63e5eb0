"""The lowering passes: one file each, each a pure function from model to model.

:data:`STEPS` is the sequence in which an export runs them; a pass is an attribute of this package
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
class Step:
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


STEPS = (
    Step("fold_constants.fold_constants"),
    Step("identities.remove_identities"),
    Step("output_padding.use_output_padding"),
    Step("static_shapes.fix_reshape_targets"),
    Step("resize.fix_resize_scales"),
    Step("einsum.merge_einsum"),
    Step("activation_ranges.write_activation_ranges", takes=("ranges",)),
    Step("quantized_weights.store_quantized_weights", takes=("ranges",)),
    Step("io.embed_preprocessing", lambda options: options.embed_preprocessing, ("preprocessing",)),
    Step("nearest_resize.use_nearest_resize"),
    Step("recover_prelu.recover_prelu"),
    Step("batched_dense.merge_batched_dense"),
    Step("layout.remove_transposes"),
    # Transposes that were moved onto constants.
    Step("fold_constants.fold_constants"),
    Step("pooling.use_global_pools"),
    Step("flatten_order.reorder_flattened_weights"),
    Step("singleton_reshapes.eliminate_singleton_reshapes"),
    Step("recover_batchnorm.recover_batchnorm"),
    Step("recover_layernorm.recover_layernorm"),
    Step("bias.merge_bias"),
    Step("fold_batchnorm.fold_batchnorm"),
    Step("padding.merge_padding"),
    Step("pool_order.quantize_before_max_pools", for_openvino),
    Step("strides.hoist_strides", for_openvino),
    Step("unsigned.quantize_unsigned", for_openvino),
    Step("clamps.remove_redundant_clamps", for_openvino),
    Step("io.convert_inputs_to_nchw", lambda options: options.channels_first_input),
    Step("float_weights.store_float_weights", lambda options: options.weights == "qdq"),
    Step("half.convert_float_to_half", lambda options: options.float_precision == "fp16"),
    Step("names.name_canonically"),
)


def _load(step: Step) -> Any:
    module, function = step.path.split(".")
    return getattr(import_module(f"{__name__}.{module}"), function)


# At once: a file that is imported later would take the place of a function of the same name.
globals().update({step.function: _load(step) for step in STEPS})
