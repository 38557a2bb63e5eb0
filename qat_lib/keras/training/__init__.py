"""Quantization-aware training with Keras: callbacks and helpers for ``model.fit``.

See ``qat_lib.torch.training`` for PyTorch.
"""

from qat_lib.keras.training.batch_norm import FreezeBatchNorm, reestimate_batch_norm
from qat_lib.keras.training.distillation import soft_targets
from qat_lib.keras.training.oscillation import WeightOscillation
from qat_lib.keras.training.range_training import FreezeRanges, scale_range_rate
from qat_lib.keras.training.weight_average import WeightAverage

__all__ = [
    "FreezeBatchNorm",
    "FreezeRanges",
    "WeightAverage",
    "WeightOscillation",
    "reestimate_batch_norm",
    "scale_range_rate",
    "soft_targets",
]
