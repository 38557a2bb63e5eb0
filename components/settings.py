"""The settings of each step: frozen, validated once, with the defaults of the main job.

``pipelines.config.RunConfig`` puts them together; a step receives only the sections it reads, which
is also what its cache key is made of.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from components.config_values import value_problem
from qat_lib.errors import ConfigError
from qat_lib.export.options import NEWEST_OPSET, OLDEST_OPSET
from qat_lib.options import (
    BackendChoice,
    CalibratorName,
    FloatPrecision,
    Mode,
    RangePolicy,
    Switch,
    WeightForm,
)
from qat_lib.spec import QuantizationSpec
from qat_lib.text_files import parse_json

Batch = Annotated[int, Field(ge=1, le=65_536)]
Side = Annotated[int, Field(ge=1, le=8_192)]


class Settings(BaseModel):
    """Base of every section: immutable, without secrets, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        hide_input_in_errors=True,
    )

    @model_validator(mode="after")
    def _can_be_stored(self) -> Settings:
        """Refuse what the files and records that hold a config can't hold, and what none of them should."""
        if (found := value_problem(self)) is not None:
            raise PydanticCustomError(
                "stored_value", "{path}: {problem}", {"path": found[0], "problem": found[1]}
            )
        return self


class PreprocessingSettings(Settings):
    """How raw pixels become the model's input: ``(pixel * scale - mean) / std`` per channel."""

    scale: float | None = Field(
        None,
        gt=0,
        description="Factor on raw pixels. Default: 1/255 for uint8 images, 1/16 for digits, 1 for floats.",
    )
    mean: list[float] = Field(
        default_factory=lambda: [0.0],
        min_length=1,
        description="Mean per channel, after the scale; one value serves all channels.",
    )
    std: list[Annotated[float, Field(gt=0)]] = Field(
        default_factory=lambda: [1.0],
        min_length=1,
        description="Standard deviation per channel, after the scale.",
    )


class DataSettings(Settings):
    """Where the images come from and how they are split."""

    kind: Literal["digits", "npz", "folder", "keras"] = Field(
        "digits",
        description="digits (scikit-learn), npz (a file), folder (one sub-folder a class), keras (a tf.keras.datasets name).",
    )
    path: str | None = Field(None, description="The .npz file or the image folder.")
    name: str | None = Field(
        None, description="The tf.keras.datasets name, such as mnist or cifar10."
    )
    classes: list[str] | None = Field(
        None, min_length=2, description="Class names in label order. Default: from the data."
    )
    image_size: tuple[Side, Side] | None = Field(
        None, description="Height and width that images are resized to. Needed for a folder."
    )
    color: Literal["rgb", "gray"] = Field("rgb", description="Colour mode of an image folder.")
    test_fraction: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="Share of the samples for the test part (unless the source has one).",
    )
    validation_fraction: float = Field(
        0.1, gt=0, lt=1, description="Share of the remaining samples for the validation part."
    )
    calibration_samples: int = Field(
        256,
        ge=1,
        description="Samples set aside for calibration; never trained on, never tested on.",
    )
    limit: int | None = Field(
        None,
        ge=10,
        description="Use at most this many samples of the source (stratified); for quick trials.",
    )
    skip_broken: bool = Field(
        False,
        description="Leave out images that can't be read, with a warning, instead of stopping.",
    )
    preprocessing: PreprocessingSettings = Field(
        default_factory=lambda: PreprocessingSettings.model_validate({})
    )

    @model_validator(mode="after")
    def _complete(self) -> DataSettings:
        if self.kind in ("npz", "folder") and not self.path:
            raise ValueError(f"data.kind={self.kind} needs data.path")
        if self.kind == "keras" and not self.name:
            raise ValueError("data.kind=keras needs data.name, such as mnist or cifar10")
        if "://" in (self.path or "") and not (
            self.kind == "npz" and str(self.path).startswith("s3://")
        ):
            expected = (
                "a file on this machine or s3://bucket/key"
                if self.kind == "npz"
                else "a local or mounted folder"
            )
            raise ValueError(f"data.path: expected {expected}, received {self.path}")
        if self.classes is not None and (
            twice := sorted({n for n in self.classes if self.classes.count(n) > 1})
        ):
            raise ValueError(
                f"data.classes: expected each name once, received {twice[0]!r} more than once"
            )
        return self


class ModelSettings(Settings):
    """The network."""

    name: str = Field(
        "resnet_digits",
        description="A reference network, keras.applications:<Name>, module:function, or the path of a .keras file.",
    )
    weights: str | None = Field(
        None,
        description="Weights to start from: imagenet (keras.applications), a .weights.h5 or a .npz file; also looked for beside the data.",
    )
    trained: bool | None = Field(
        None,
        description="Whether the model is trained already, so that the baseline step only evaluates. Default: true for a .keras file and when weights are given for the same classes.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments for the builder."
    )

    @field_validator("options", mode="before")
    @classmethod
    def _read_json(cls, options: Any) -> Any:
        """Take a JSON object, too: the form in which a pipeline hands over options that hold a null."""
        is_json = isinstance(options, str) and options.startswith("{")
        return parse_json(options, "model.options", error=ConfigError) if is_json else options

    @model_validator(mode="after")
    def _can_be_named(self) -> ModelSettings:
        if (problem := _name_problem(self.name)) is not None:
            raise ValueError(f"model.name: {problem}, received {self.name!r}")
        if "://" in (self.weights or ""):
            raise ValueError(
                f"model.weights: expected imagenet or a file on this machine, received {self.weights}"
            )
        return self


def _name_problem(name: str) -> str | None:
    """Return what was expected instead of a model's name that can't be one, whatever is installed."""
    if "://" in name:
        return "expected a .keras file on this machine"
    if name.endswith((".h5", ".hdf5")):
        return "expected a .keras file (load the model in Keras and save it as one)"
    if name.endswith(".keras"):
        return None
    module, colon, function = name.partition(":")
    if colon and not all(part.isidentifier() for part in (*module.split("."), function)):
        return "expected module:function or keras.applications:<Name>"
    return None if name.strip() else "expected the name of a network"


class TrainingSettings(Settings):
    """Training of the FP32 baseline."""

    epochs: int = Field(60, ge=0, le=10_000)
    batch_size: Batch = 64
    learning_rate: float = Field(
        2e-3, gt=0, le=100, description="Peak learning rate; cosine decay to zero."
    )
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: float = Field(0.0, ge=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    augment: Literal["none", "shift", "flip_crop"] = Field(
        "shift", description="shift: up to one pixel in eight; flip_crop: mirror and shift."
    )


class QuantizationSettings(Settings):
    """Which tensors get a Q/DQ pair, and how their first ranges are found."""

    mode: Mode = "full"
    spec: list[dict[str, Any]] | str | None = Field(
        None, description="QuantizationSpec entries, or the path of a YAML file that holds them."
    )
    cases: list[str] = Field(
        default_factory=lambda: ["TensorRTQDQCase"],
        description="Custom Q/DQ cases: names of qat_lib.custom_qdq_cases or module:Class.",
    )
    calibrator: CalibratorName = "percentile"
    percentile: float = Field(99.99, gt=50, le=100)
    range_policy: RangePolicy = Field(
        "frozen", description="What happens to activation ranges during fine-tuning."
    )
    unsigned: Switch = Field(
        "auto",
        description="Use unsigned INT8 for non-negative activations, such as those behind a ReLU: 255 steps instead of 127, and quicker kernels on a CPU, but no TensorRT. auto: unless target or backend is tensorrt.",
    )
    batch_size: Batch = Field(64, description="Batch size of the calibration pass.")

    @field_validator("spec")
    @classmethod
    def _is_a_spec(
        cls, spec: list[dict[str, Any]] | str | None
    ) -> list[dict[str, Any]] | str | None:
        if isinstance(spec, list):
            QuantizationSpec.from_list(spec)
        return spec


class QATSettings(Settings):
    """Quantization-aware fine-tuning: about 10% of the schedule at a few percent of the initial rate, cosine decay."""

    epochs: int = Field(6, ge=0, le=10_000)
    batch_size: Batch = 64
    learning_rate: float = Field(5e-5, gt=0, le=100)
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: float = Field(0.0, ge=0)
    augment: Literal["none", "shift", "flip_crop"] = "shift"
    distillation: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Weight of the baseline's outputs as soft targets beside the labels; 0 = labels only.",
    )


class ExportSettings(Settings):
    """Keras to ONNX."""

    target: BackendChoice = Field(
        "auto",
        description="What the files are for; auto follows engine.backend. A tensorrt file runs in every backend.",
    )
    opset: int = Field(17, ge=OLDEST_OPSET, le=NEWEST_OPSET)
    weights: WeightForm = Field(
        "int8", description="INT8 initializer + DQ, or FP32 + Q + DQ (TensorRT 8.6)."
    )
    float_precision: FloatPrecision = Field(
        "fp32",
        description="Precision of non-quantized layers in the quantized files (obeyed by TensorRT 10.12 and newer).",
    )
    parity_samples: int = Field(
        512,
        ge=1,
        description="Samples of the test part on which ONNX Runtime is compared with Keras.",
    )


class EngineSettings(Settings):
    """The engine build and its benchmark."""

    backend: BackendChoice = Field(
        "auto",
        description="auto: TensorRT where a GPU and its library are, else OpenVINO, else ONNX Runtime.",
    )
    fp16: Switch = Field(
        "auto",
        description="Whether an FP16 engine is built and measured beside the INT8 ones; auto: where the backend computes in FP16.",
    )
    batch_size: Batch = Field(32, description="The larger batch of the throughput figure.")
    threads: int = Field(0, ge=0, le=4096, description="CPU threads; 0 = all.")
    benchmark_seconds: float = Field(
        2.0, gt=0, le=3600, description="Time for each latency figure."
    )
    workspace_mib: int = Field(1024, ge=1, le=2**20)
    optimization_level: int = Field(3, ge=0, le=5)


class GateSettings(Settings):
    """When a quantized engine may be promoted."""

    max_accuracy_drop: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Largest allowed loss of top-1 accuracy against FP32 Keras (0.01 = one percentage point).",
    )
    min_accuracy: float | None = Field(None, ge=0, le=1)
    min_int8_fraction: float = Field(
        0.5, ge=0, le=1, description="Least share of the weighted layers that must run in INT8."
    )
    min_speedup: float | None = Field(
        None,
        gt=0,
        description="Least ratio of the FP32 engine's median latency to the INT8 engine's.",
    )


class TrackingSettings(Settings):
    """MLflow."""

    uri: str | None = Field(None, description="Tracking URI. Default: SQLite beside the runs.")
    experiment: str = Field("qatline", min_length=1, max_length=500)
    required: bool = Field(
        True,
        description="Whether a tracking store that can't be reached fails the run, or is only a warning.",
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
                "tracking.uri: expected the address of a server or a database, such as https://mlflow.example or "
                "sqlite:////folder/mlflow.db, received something else"
            )
        return uri
