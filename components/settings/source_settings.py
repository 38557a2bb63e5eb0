"""Settings of a run's inputs: the data, the task and the network."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from qat_lib.errors import ConfigError
from qat_lib.files.text_files import parse_json
from qat_lib.options import Framework
from qatline.components.settings.settings_base import Settings
from qatline.components.storage.stored_file import is_archive
from qatline.components.support.frameworks import FRAMEWORKS

Side = Annotated[int, Field(ge=1, le=8_192)]


def _read_json(options: Any) -> Any:
    """Take a JSON object, too: the form in which a pipeline passes options with a null."""
    is_json = isinstance(options, str) and options.startswith("{")
    return parse_json(options, "options", error=ConfigError) if is_json else options


Options = Annotated[dict[str, Any], BeforeValidator(_read_json)]
"""Keyword arguments of a user's function or class."""


class ValueSettings(Settings):
    """Per-channel preprocessing of raw values: ``(value * scale - mean) / std``."""

    scale: float | None = Field(
        None,
        gt=0,
        description=(
            "Factor on raw values. Default: 1/255 for uint8, 1/16 for digits, 1 for floats."
        ),
    )
    mean: list[float] = Field(
        default_factory=lambda: [0.0],
        min_length=1,
        description="Mean per channel (last axis), after the scale; one value serves all channels.",
    )
    std: list[Annotated[float, Field(gt=0)]] = Field(
        default_factory=lambda: [1.0],
        min_length=1,
        description="Standard deviation per channel, after the scale.",
    )
    standardize: bool = Field(
        False,
        description=(
            "Take mean and std of each channel from the training part, instead of the values "
            "above; for arrays and tables whose channels have different ranges."
        ),
    )


class PreprocessingSettings(ValueSettings):
    """Per-channel preprocessing of raw values, also different for each of several inputs."""

    inputs: dict[str, ValueSettings] = Field(
        default_factory=dict,
        description="Scale, mean and std of single inputs by name; other inputs use those above.",
    )


class FeatureSettings(Settings):
    """A feature of TFRecords (kind=tfrecord)."""

    dtype: Literal["uint8", "int32", "int64", "float32", "float64"] = Field(
        "float32", description="Type of the values."
    )
    shape: list[Annotated[int, Field(ge=1)]] = Field(
        default_factory=list, description="Shape in one record; [] for a single value."
    )
    encoding: Literal["values", "bytes", "image"] = Field(
        "values",
        description=(
            "values (a list of numbers), bytes (an array's bytes, little-endian), image (a PNG or "
            "JPEG file; as a target, a mask of class indices)."
        ),
    )

    @model_validator(mode="after")
    def _has_a_shape(self) -> FeatureSettings:
        if self.encoding == "image" and self.shape:
            raise ValueError(
                "shape: expected none for an image, whose size is data.image_size or its own; "
                f"received {self.shape}"
            )
        return self

    @property
    def is_float(self) -> bool:
        """Whether values are stored as a list of floats."""
        return self.dtype.startswith("float")


Kind = Literal[
    "digits",
    "npz",
    "folder",
    "masks",
    "coco",
    "table",
    "tfrecord",
    "huggingface",
    "keras",
    "python",
]

WITH_PATH: dict[Kind, str] = {
    "npz": "file",
    "table": "file",
    "folder": "folder or an archive of it",
    "masks": "folder or an archive of it",
    "tfrecord": "folder or pattern of TFRecords",
    "coco": "folder or an archive of it",
    "huggingface": "folder or an archive of it",
}
"""Kinds that read ``data.path``, and what it is."""

FOLDERS: tuple[Kind, ...] = ("folder", "masks", "coco")
"""Kinds whose ``data.path`` is a folder of images."""


class DataSettings(Settings):
    """Where the data comes from and how it is split."""

    kind: Kind = Field(
        "digits",
        description=(
            "digits (scikit-learn), npz (a file of arrays), folder (of images, one sub-folder a "
            "class), masks (images/ and masks/), coco (images with boxes), table (a CSV or Parquet "
            "file), tfrecord (shards of TFRecords), huggingface (a data set of datasets), keras (a "
            "tf.keras.datasets name), python (a function). See docs/how-to/data.md."
        ),
    )
    path: str | None = Field(
        None,
        description=(
            "The .npz, .csv or .parquet file; or the image folder, or an archive of it (.tar, "
            ".tar.gz, .tgz, .zip); or a folder or pattern of TFRecords, such as shards/train-*; or "
            "a folder written by datasets.save_to_disk. On this machine or in S3: s3://bucket/key."
        ),
    )
    name: str | None = Field(
        None,
        description=(
            "The tf.keras.datasets name, such as mnist or cifar10; kind=python: module:function; "
            "kind=huggingface: a data set of the hub."
        ),
    )
    revision: str | None = Field(
        None,
        min_length=1,
        description="Commit or tag of the data set of the hub (kind=huggingface).",
    )
    options: Options = Field(
        default_factory=dict,
        description=(
            "Keyword arguments for the function (kind=python); name, data_dir and data_files of a "
            "data set of the hub (kind=huggingface)."
        ),
    )
    fingerprint: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description=(
            "Any text that changes when the data behind the function changes (kind=python). "
            "Default: the function is called in every run."
        ),
    )
    classes: list[str] | None = Field(
        None, min_length=2, description="Class names in label order. Default: from the data."
    )
    features: dict[str, FeatureSettings] = Field(
        default_factory=dict,
        description="Features of a record by name (kind=tfrecord): inputs, and target_columns.",
    )
    annotations: str | dict[Literal["train", "val", "test"], str] | None = Field(
        None,
        description=(
            "File with the boxes, relative to data.path (kind=coco), or one for each of train, val "
            "and test. Default: the JSON files in data.path and data.path/annotations."
        ),
    )
    target_columns: list[str] | None = Field(
        None,
        min_length=1,
        description=(
            "Columns or features with the targets (kind=table, tfrecord, huggingface). Default for "
            "huggingface: the column of class labels."
        ),
    )
    feature_columns: list[str] | None = Field(
        None,
        min_length=1,
        description=(
            "Columns with the inputs (kind=table, huggingface). Default: all other columns."
        ),
    )
    image_column: str | None = Field(
        None,
        description=(
            "Column with the paths of images, relative to the table's folder (kind=table), which "
            "are then the input instead of features."
        ),
    )
    split_column: str | None = Field(
        None,
        description="Column with each row's part (kind=table): train, val or test. Default: none.",
    )
    weight_column: str | None = Field(
        None,
        description=(
            "Column with the weight of each row's loss in the training (kind=table), a number "
            "from 0. Default: equal weights."
        ),
    )
    image_size: tuple[Side, Side] | None = Field(
        None,
        description=(
            "Height and width that images are resized to. Needed for files of different sizes."
        ),
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
        description="Samples held out for calibration: used for neither training nor testing.",
    )
    limit: int | None = Field(
        None,
        ge=10,
        description="Use at most this many samples of the source (stratified); for quick trials.",
    )
    storage: Literal["auto", "files", "shards"] = Field(
        "auto",
        description=(
            "How the prepared data set holds a folder's images: as paths of their files, or copied "
            "into shards (.tar). auto: files; shards on a cluster, where other pods read them, and "
            "for images in S3 or in an archive."
        ),
    )
    skip_broken: bool = Field(
        False,
        description="Leave out broken images and boxes, with warnings, instead of stopping.",
    )
    preprocessing: PreprocessingSettings = Field(
        default_factory=lambda: PreprocessingSettings.model_validate({})
    )

    @model_validator(mode="after")
    def _complete(self) -> DataSettings:
        if self.kind == "huggingface":
            self._check_hub()
        elif self.kind in WITH_PATH and not self.path:
            raise ValueError(f"data.kind={self.kind} needs data.path")
        if self.kind == "keras" and not self.name:
            raise ValueError("data.kind=keras needs data.name, such as mnist or cifar10")
        if self.kind == "python" and not _is_reference(self.name or ""):
            raise ValueError(
                f"data.kind=python needs data.name=module:function, received {self.name!r}"
            )
        targets = self.target_columns or []
        if self.kind in ("table", "tfrecord") and not targets:
            raise ValueError(f"data.kind={self.kind} needs data.target_columns")
        if self.kind == "tfrecord":
            if missing := [name for name in targets if name not in self.features]:
                raise ValueError(
                    f"data.target_columns names {missing[0]!r}, received the features "
                    f"{', '.join(self.features) or 'none'} (data.features)"
                )
            if not set(self.features) - set(targets):
                raise ValueError(
                    "data.features: expected at least one input in addition to the targets"
                )
        if isinstance(self.annotations, dict) and "train" not in self.annotations:
            raise ValueError(
                "data.annotations: expected a file for train, received "
                f"{', '.join(self.annotations) or 'none'}"
            )
        path = self.path or ""
        if "://" in path and not (self.kind in WITH_PATH and path.startswith("s3://")):
            what = WITH_PATH.get(self.kind, "file")
            raise ValueError(
                f"data.path: expected a {what} on this machine or s3://bucket/key, received {path}"
            )
        if self.image_column and self.feature_columns:
            raise ValueError("data.image_column: expected no data.feature_columns with it")
        if self.image_column and "://" in path:
            raise ValueError(
                "data.image_column: expected data.path on this machine, next to the images; "
                f"received {path}"
            )
        is_elsewhere = path.startswith("s3://") or is_archive(path)
        if self.kind in FOLDERS and self.storage == "files" and is_elsewhere:
            raise ValueError(
                f"data.storage: expected shards or auto for images in S3 or in an archive, which "
                f"are copied; received files with {path}"
            )
        if self.classes is not None and (
            twice := sorted({n for n in self.classes if self.classes.count(n) > 1})
        ):
            raise ValueError(
                f"data.classes: expected each name once, received {twice[0]!r} more than once"
            )
        return self

    def _check_hub(self) -> None:
        if (self.path is None) == (self.name is None):
            raise ValueError(
                "data.kind=huggingface needs either data.path, a folder written by save_to_disk, "
                "or data.name, a data set of the hub"
            )
        if self.name is not None and self.revision is None:
            raise ValueError(
                "data.kind=huggingface with data.name needs data.revision, a commit or tag: a data "
                "set of the hub may change"
            )
        if unknown := sorted(set(self.options) - {"name", "data_dir", "data_files"}):
            raise ValueError(
                "data.options: expected name, data_dir or data_files for a data set of the hub, "
                f"received {unknown[0]!r}"
            )


def reads_images(data: DataSettings) -> bool:
    """Return whether the inputs are image files, which ``data.storage`` is about."""
    return data.kind in FOLDERS or data.image_column is not None


class TaskSettings(Settings):
    """Meaning of the targets, with loss and metrics."""

    name: str | None = Field(
        None,
        description=(
            "classification, multilabel, regression, segmentation, detection, or module:Class for "
            "a task of your own. Default: from the data's targets."
        ),
    )
    options: Options = Field(default_factory=dict, description="Keyword arguments for the task.")

    @model_validator(mode="after")
    def _can_be_named(self) -> TaskSettings:
        name = self.name
        if name is None or _is_reference(name):
            return self
        # Tasks import NumPy, which the launcher of a step does not need.
        from qatline.components.tasks import TASKS

        if name not in TASKS:
            raise ValueError(
                f"task.name: expected {', '.join(TASKS)} or module:Class, received {name!r}"
            )
        return self


class ModelSettings(Settings):
    """The network."""

    framework: Framework = Field(
        "keras",
        description="Framework of the network; torch needs qatline[torch].",
    )
    name: str = Field(
        "resnet_digits",
        description=(
            "A reference network, keras.applications:<Name>, module:function, or a .keras file, "
            "here or in S3 (s3://bucket/key); with torch: resnet20_cifar10, mobilenetv2_imagenet or module:function."
        ),
    )
    weights: str | None = Field(
        None,
        description=(
            "Weights to start from: imagenet (keras.applications), a .weights.h5 or a .npz file "
            "(torch: .npz), here or in S3 (s3://bucket/key); also searched for next to the data."
        ),
    )
    trained: bool | None = Field(
        None,
        description=(
            "Whether the model is trained already, so that the baseline step only evaluates. "
            "Default: true for a .keras file and when weights are given for the same classes."
        ),
    )
    options: Options = Field(default_factory=dict, description="Keyword arguments for the builder.")

    @model_validator(mode="after")
    def _can_be_named(self) -> ModelSettings:
        if (problem := _name_problem(self.name, self.framework)) is not None:
            raise ValueError(f"model.name: {problem}, received {self.name!r}")
        weights = self.weights or ""
        if "://" in weights and not weights.startswith("s3://"):
            raise ValueError(
                "model.weights: expected imagenet or a file on this machine or s3://bucket/key, "
                f"received {weights}"
            )
        has_files = FRAMEWORKS[self.framework].supports("model files")
        if not has_files and not (self.weights or ".npz").endswith(".npz"):
            raise ValueError(
                "model.weights: expected a .npz file with the names of the module's state_dict() "
                f"(model.framework=torch), received {self.weights}"
            )
        return self


def _name_problem(name: str, framework: Framework) -> str | None:
    """Return the expected value of an invalid model name, or None."""
    if not FRAMEWORKS[framework].supports("model files") and (
        name.endswith((".keras", ".pt", ".pth")) or name.startswith("keras.applications:")
    ):
        return "expected a reference network of PyTorch or module:function (model.framework=torch)"
    if "://" in name and not (name.startswith("s3://") and name.endswith(".keras")):
        return "expected a .keras file on this machine or s3://bucket/key.keras"
    if name.endswith((".h5", ".hdf5")):
        return "expected a .keras file (load the model in Keras and save it as one)"
    if name.endswith(".keras"):
        return None
    if ":" in name and not _is_reference(name):
        return "expected module:function or keras.applications:<Name>"
    return None if name.strip() else "expected the name of a network"


def _is_reference(name: str) -> bool:
    """Return whether ``name`` has the form ``module:attribute``."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), attribute))
