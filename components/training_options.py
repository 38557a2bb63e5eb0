"""What a training may be asked for, by name: settings and command line derive from this."""

from __future__ import annotations

from typing import Literal, TypeAlias

Optimizer: TypeAlias = Literal["adam", "adamw", "sgd"]
Augmentation: TypeAlias = Literal["none", "shift", "flip_crop"]
"""Random changes of training images: ``components.data.tf_pipeline.build_dataset``."""
Teacher: TypeAlias = Literal["control", "baseline"]
"""Whose outputs are soft targets: the FP32 model trained as long as QAT, or as it came."""
