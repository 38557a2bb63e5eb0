"""Options of fine-tuning, the common source of settings and command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from qat_lib.support.option_fields import about

Code: TypeAlias = str | dict[str, Any]
"""A built-in name or ``module:attribute``; ``{name, options}`` also contains keyword arguments."""
Optimizer: TypeAlias = Literal["adam", "adamw", "sgd"]
Augmentation: TypeAlias = Literal["none", "shift", "flip", "flip_crop"]
"""Random changes of training images: ``qatline.components.data.tf_pipeline.build_dataset``."""
Schedule: TypeAlias = Literal["cosine", "constant"]
Teacher: TypeAlias = Literal["control", "baseline"]
"""Source of soft targets: the FP32 control trained like QAT, or the initial FP32 model."""

LARGEST_BATCH = 65_536
MOST_EPOCHS = 10_000
MOST_WORKERS = 1024
OPTIMIZER_HELP = "adam, adamw, sgd or module:factory."
ACCUMULATE_HELP = (
    "Parts of a batch that follow one another in a step, which needs the memory of one part; "
    "their gradients add up."
)
CHECKPOINT_HELP = (
    "Epochs between two checkpoints, from which an interrupted training goes on; 0 = none."
)


@dataclass(frozen=True, kw_only=True)
class FinetuningOptions:
    """Schedule and recipe of quantization-aware fine-tuning. Epochs count from 1."""

    epochs: int = field(
        default=2, metadata=about("Epochs.", least=0, most=MOST_EPOCHS, command_least=1)
    )
    batch_size: int = field(default=64, metadata=about("Batch size.", least=1, most=LARGEST_BATCH))
    accumulate_steps: int = field(
        default=1, metadata=about(ACCUMULATE_HELP, least=1, most=LARGEST_BATCH)
    )
    learning_rate: float = field(
        default=5e-5,
        metadata=about(
            "Peak learning rate; see schedule.",
            above=0,
            most=100,
            command_help="Peak learning rate; cosine decay to zero.",
        ),
    )
    optimizer: Code = field(
        default="adam",
        metadata=about(OPTIMIZER_HELP, command_kind=Optimizer, command_help="Optimizer."),
    )
    weight_decay: float = field(default=0.0, metadata=about("Weight decay.", least=0))
    augment: Code | None = field(
        default=None,
        metadata=about(
            "As training.augment; by default the augmentation of the baseline's training in this "
            "run, none for a model that was trained elsewhere.",
            command_kind=Augmentation | None,
            command_help="Random changes of training images.",
        ),
    )
    control: bool = field(
        default=False,
        metadata=about(
            "Whether the FP32 baseline is trained on for as long, the same way, and evaluated "
            "beside it: more training is no gain of quantization. Costs as much again.",
            in_command=False,
        ),
    )
    teacher: Teacher = field(
        default="baseline",
        metadata=about(
            "Model in floating point whose outputs are soft targets: the baseline, or the control "
            "that was trained for as long, which makes one.",
            in_command=False,
        ),
    )
    distillation: float = field(
        default=0.5,
        metadata=about(
            "Weight of the teacher's outputs as soft targets next to the labels; 0 = labels only.",
            least=0,
            most=1,
            command_help="With --teacher: weight of its outputs.",
        ),
    )
    ema: float = field(
        default=0.0,
        metadata=about("Decay of the moving average of the weights; 0 = none.", least=0, below=1),
    )
    freeze_batch_norm: int | None = field(
        default=None,
        metadata=about("First epoch with frozen BatchNormalization.", least=1, most=MOST_EPOCHS),
    )
    reestimate_batch_norm: bool = field(
        default=False,
        metadata=about(
            "Measure the statistics of BatchNormalization again after each epoch, without "
            "augmentation.",
            flag="--reestimate-bn",
        ),
    )
    freeze_ranges: int | None = field(
        default=None, metadata=about("First epoch with frozen ranges.", least=1, most=MOST_EPOCHS)
    )
    range_rate: float = field(
        default=1.0,
        metadata=about("Rate of learned ranges over that of the weights.", above=0, most=100),
    )
    freeze_oscillating: float | None = field(
        default=None,
        metadata=about(
            "Freeze a weight whose integer turns back in this share of the steps; 0.02 suits "
            "4 bits.",
            above=0,
            most=1,
        ),
    )
    checkpoint_epochs: int = field(
        default=1,
        metadata=about(CHECKPOINT_HELP, least=0, most=MOST_EPOCHS, in_command=False),
    )
    workers: int | None = field(
        default=None,
        metadata=about(
            "Processes that train together; by default as many as training.workers.",
            least=1,
            most=MOST_WORKERS,
            in_command=False,
        ),
    )
