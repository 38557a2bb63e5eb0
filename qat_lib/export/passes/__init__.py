"""The lowering passes: one file each, each a pure function from model to model."""

from __future__ import annotations

from qat_lib.export.passes.activation_ranges import write_activation_ranges
from qat_lib.export.passes.batched_dense import merge_batched_dense
from qat_lib.export.passes.bias import merge_bias
from qat_lib.export.passes.einsum import merge_einsum
from qat_lib.export.passes.flatten_order import reorder_flattened_weights
from qat_lib.export.passes.float_weights import store_float_weights
from qat_lib.export.passes.fold_batchnorm import fold_batchnorm
from qat_lib.export.passes.fold_constants import fold_constants
from qat_lib.export.passes.half import convert_float_to_half
from qat_lib.export.passes.identities import remove_identities
from qat_lib.export.passes.io import embed_preprocessing, take_channels_first
from qat_lib.export.passes.layout import remove_transposes
from qat_lib.export.passes.names import name_canonically
from qat_lib.export.passes.nearest_resize import use_nearest_resize
from qat_lib.export.passes.output_padding import use_output_padding
from qat_lib.export.passes.padding import merge_padding
from qat_lib.export.passes.pool_order import quantize_before_max_pools
from qat_lib.export.passes.pooling import use_global_pools
from qat_lib.export.passes.quantized_weights import store_quantized_weights
from qat_lib.export.passes.recover_batchnorm import recover_batchnorm
from qat_lib.export.passes.recover_layernorm import recover_layernorm
from qat_lib.export.passes.recover_prelu import recover_prelu
from qat_lib.export.passes.resize import fix_resize_scales
from qat_lib.export.passes.saturation import let_quantizers_clamp
from qat_lib.export.passes.static_shapes import fix_reshape_targets
from qat_lib.export.passes.strides import pull_strides_up
from qat_lib.export.passes.thin_reshapes import remove_thin_reshapes
from qat_lib.export.passes.unsigned import quantize_unsigned

__all__ = [
    "convert_float_to_half",
    "embed_preprocessing",
    "fix_reshape_targets",
    "fix_resize_scales",
    "fold_batchnorm",
    "fold_constants",
    "let_quantizers_clamp",
    "merge_batched_dense",
    "merge_bias",
    "merge_einsum",
    "merge_padding",
    "name_canonically",
    "pull_strides_up",
    "quantize_before_max_pools",
    "quantize_unsigned",
    "recover_batchnorm",
    "recover_layernorm",
    "recover_prelu",
    "remove_identities",
    "remove_thin_reshapes",
    "remove_transposes",
    "reorder_flattened_weights",
    "store_float_weights",
    "store_quantized_weights",
    "take_channels_first",
    "use_global_pools",
    "use_nearest_resize",
    "use_output_padding",
    "write_activation_ranges",
]
