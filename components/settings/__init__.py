"""Settings of each step: frozen, validated, with the main job's defaults.

``qatline.pipelines.config.run_config.RunConfig`` combines them. A step receives only the sections
it reads; they are also part of its cache key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, create_model, field_validator, model_validator

from qat_lib.core.spec import QuantizationSpec
from qat_lib.export.options import ExportOptions, option_fields
from qat_lib.options import (
    BackendChoice,
    CalibratorName,
    CpuChoice,
    Mode,
    RangePolicy,
    Rounding,
    Switch,
)
from qat_lib.support.option_fields import OptionField, fields_of
from qatline.components.settings.code_settings import CustomTraining, EarlyStoppingSettings
from qatline.components.settings.gate_settings import (
    GateSettings,
    PackageSettings,
    RegistrySettings,
    RetrainSettings,
)
from qatline.components.settings.settings_base import Batch, Settings
from qatline.components.settings.source_settings import (
    DataSettings,
    ModelSettings,
    PreprocessingSettings,
    TaskSettings,
)
from qatline.components.support.training_options import (
    ACCUMULATE_HELP,
    CHECKPOINT_HELP,
    LARGEST_BATCH,
    MOST_EPOCHS,
    MOST_WORKERS,
    OPTIMIZER_HELP,
    Code,
    FinetuningOptions,
)

__all__ = [
    "Batch",
    "CustomTraining",
    "DataSettings",
    "EarlyStoppingSettings",
    "EngineSettings",
    "ExportSettings",
    "GateSettings",
    "ModelSettings",
    "PackageSettings",
    "PreprocessingSettings",
    "QATSettings",
    "QuantizationSettings",
    "RegistrySettings",
    "RetrainSettings",
    "Settings",
    "TaskSettings",
    "TrackingSettings",
    "TrainingSettings",
]


class _Schedule(Settings):
    """A schedule of training steps, on whole batches or on parts that follow one another."""

    if TYPE_CHECKING:
        batch_size: int = 64
        accumulate_steps: int = 1

    @property
    def part_rows(self) -> int | None:
        """Rows of a part of a batch; None for whole batches."""
        whole = self.accumulate_steps == 1
        return None if whole else math.ceil(self.batch_size / self.accumulate_steps)

    @model_validator(mode="after")
    def _has_a_row_for_each_part(self) -> _Schedule:
        if self.accumulate_steps > self.batch_size:
            raise ValueError(
                f"accumulate_steps: expected at most batch_size={self.batch_size}, received "
                f"{self.accumulate_steps}; a part of a batch needs a row at least"
            )
        return self


class _BaselineSchedule(_Schedule):
    """Keys of the baseline's training that QAT has with other defaults."""

    epochs: int = Field(9, ge=0, le=10_000)
    batch_size: Batch = 32
    accumulate_steps: int = Field(1, ge=1, le=LARGEST_BATCH, description=ACCUMULATE_HELP)
    learning_rate: float = Field(
        1e-3, gt=0, le=100, description="Peak learning rate; see schedule."
    )
    optimizer: Code = Field("adam", description=OPTIMIZER_HELP)
    weight_decay: float = Field(0.0, ge=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    augment: Code | None = Field(
        None,
        description=(
            "none; shift: up to one pixel in eight; flip: mirror; flip_crop: both; or "
            "module:function. Default: shift for images of a task whose targets it keeps, else "
            "none."
        ),
    )
    checkpoint_epochs: int = Field(1, ge=0, le=MOST_EPOCHS, description=CHECKPOINT_HELP)
    workers: int = Field(
        1,
        ge=1,
        le=MOST_WORKERS,
        description=(
            "Processes that train together, each on its rows of every batch (Keras models)."
        ),
    )


class TrainingSettings(CustomTraining, _BaselineSchedule):
    """Training of the FP32 baseline."""

    section: ClassVar[str] = "training"


class QuantizationSettings(Settings):
    """Quantized tensors, and the calibration of their first ranges."""

    mode: Mode = "full"
    spec: list[dict[str, Any]] | str | None = Field(
        None, description="QuantizationSpec entries, or the path of a YAML file that holds them."
    )
    cases: list[str] = Field(
        default_factory=lambda: ["TensorRTQDQCase"],
        description="Custom Q/DQ cases: names of qat_lib.custom_qdq_cases or module:Class.",
    )
    calibrator: CalibratorName = Field(
        "auto",
        description=(
            "auto: the range with the least squared error in the outputs of the layers that read "
            "the tensor. Default where a percentile is given: percentile."
        ),
    )
    percentile: float = Field(99.99, gt=50, le=100)
    range_policy: RangePolicy = Field(
        "frozen", description="Change of the activation ranges during fine-tuning."
    )
    unsigned: Switch = Field(
        "auto",
        description=(
            "Use unsigned INT8 for non-negative activations, such as those after a ReLU: 255 "
            "levels instead of 127, and faster CPU kernels (not supported by TensorRT). auto: "
            "unless target or backend is tensorrt."
        ),
    )
    float_outputs: Switch = Field(
        "auto",
        description=(
            "Keep output layers in float (TensorRTQDQCase): the last layers with weights, if no "
            "normalization or activation follows, and everything behind them. auto: as the task says."
        ),
    )
    batch_size: Batch = Field(64, description="Batch size of the calibration pass.")
    bias_correction: bool = Field(True, description="Apply bias correction.")

    equalize: Literal["auto"] | bool = Field(
        "auto",
        description=(
            "Scale the channels of activations to similar ranges first, without a change of the "
            "FP32 outputs. auto: where the model has depthwise convolutions and the error of INT8 "
            "on the calibration data gets lower by it."
        ),
    )

    rounding: Rounding = Field(
        "nearest",
        description=(
            "adaround: choose each weight's integer for the least error of its layer's outputs on "
            "the calibration data, which makes 4-bit weights usable without training."
        ),
    )
    diagnose_layers: int = Field(
        0,
        ge=0,
        description=(
            "Layers whose cost in INT8 the report shows, those with the most quantization noise; "
            "0: none (Keras models)."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _takes_a_given_percentile(cls, values: Any) -> Any:
        is_given = isinstance(values, dict) and "percentile" in values
        return {"calibrator": "percentile", **values} if is_given else values

    @field_validator("spec")
    @classmethod
    def _is_a_spec(
        cls, spec: list[dict[str, Any]] | str | None
    ) -> list[dict[str, Any]] | str | None:
        if isinstance(spec, list):
            QuantizationSpec.from_list(spec)
        return spec


def _derived_fields(options: Sequence[OptionField]) -> dict[str, Any]:
    """Return the fields of a section that correspond to options of a dataclass."""
    derived: dict[str, Any] = {}
    for each in options:
        info = each.info
        if info.in_config:
            bounds = {"ge": info.least, "le": info.most, "gt": info.above, "lt": info.below}
            given: dict[str, Any] = {}
            for name, bound in bounds.items():
                if bound is not None:
                    given[name] = bound
            described = Field(each.default, description=info.help, **given)
            derived[each.name] = (each.kind, described)
    return derived


if TYPE_CHECKING:

    class _DerivedQAT(FinetuningOptions, _Schedule):
        """The section as a type checker sees it."""

else:
    _DerivedQAT = create_model(
        "_DerivedQAT", __base__=_Schedule, **_derived_fields(fields_of(FinetuningOptions))
    )


class QATSettings(CustomTraining, _DerivedQAT):
    """Quantization-aware fine-tuning: a short schedule at a low rate.

    About 10% of the epochs of the training at a few percent of its learning rate are usual.
    Epochs count from 1.
    """

    section: ClassVar[str] = "qat"

    @property
    def trains_control(self) -> bool:
        """Whether the control is trained, for itself or as the teacher."""
        return bool(self.control or (self.teacher == "control" and self.distillation > 0))


_DerivedExport: Any = create_model(
    "_DerivedExport", __base__=Settings, **_derived_fields(option_fields())
)


class ExportSettings(_DerivedExport):
    """Export to ONNX: its options and its comparison with Keras."""

    target: BackendChoice = Field(
        "auto",
        description=(
            "Backend that the files are for; auto: engine.backend. A tensorrt file runs in every "
            "backend."
        ),
    )
    parity_samples: int = Field(
        512,
        ge=1,
        description="Samples of the test part on which ONNX Runtime is compared with Keras.",
    )

    def options(self) -> ExportOptions:
        """Return the options of ``qat_lib.export_onnx``; ``target`` must be resolved.

        Raises:
            ExportError: ``target`` is ``auto``.
        """
        names = {each.name for each in option_fields()}
        return ExportOptions(**self.model_dump(include=names))


class EngineSettings(Settings):
    """The engine build and its benchmark."""

    backend: BackendChoice = Field(
        "auto",
        description="auto: TensorRT if a GPU and its library are found, else OpenVINO, else ONNX Runtime.",
    )
    cpu: CpuChoice = Field(
        "auto",
        description=(
            "Kind of CPU that runs the engines: vnni (x86 with VNNI or AMX), avx2 (x86 without) or "
            "arm; auto: this machine's. INT8 weights for avx2 leave room for sums of 16 bits."
        ),
    )
    fp16: Switch = Field(
        "auto",
        description=(
            "Whether FP16 and BF16 engines are built and measured next to the INT8 ones; auto: "
            "where the backend computes in them; always: an FP16 engine in any case."
        ),
    )
    batch_size: Batch = Field(
        32,
        description="Batch size of the throughput benchmark, and the largest that the engines take.",
    )
    threads: int = Field(0, ge=0, le=4096, description="CPU threads; 0 = all.")
    benchmark_seconds: float = Field(1.0, gt=0, le=3600, description="Seconds of each benchmark.")
    workspace_mib: int = Field(1024, ge=1, le=2**20)
    optimization_level: int = Field(3, ge=0, le=5)


class TrackingSettings(Settings):
    """MLflow."""

    uri: str | None = Field(
        None, description="Tracking URI. Default: SQLite in the folder of the runs."
    )
    experiment: str = Field("qatline", min_length=1, max_length=500)
    required: bool = Field(
        True,
        description="Whether an unreachable tracking store fails the run; else it is a warning.",
    )

    @field_validator("uri")
    @classmethod
    def _is_an_address(cls, uri: str | None) -> str | None:
        # The value is not shown: "user:password@host", without a scheme, can't be told from other
        # mistakes.
        if uri is not None and not re.match(
            r"(https?://[^/]|(sqlite|postgresql|mysql|mssql)(\+\w+)?://|file:|databricks)", uri
        ):
            raise ValueError(
                "tracking.uri: expected the address of a server or a database, such as "
                "https://mlflow.example or sqlite:////folder/mlflow.db, received something else"
            )
        return uri
