"""Settings of a run's inputs: the data and the network."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from qat_lib.errors import ConfigError
from qat_lib.files.text_files import parse_json
from qat_lib.options import Framework
from qatline.components.settings.settings_base import Settings
from qatline.components.storage.stored_file import is_archive
from qatline.components.support.frameworks import FRAMEWORKS

Side = Annotated[int, Field(ge=1, le=8_192)]


class PreprocessingSettings(Settings):
    """Per-channel preprocessing of raw pixels: ``(pixel * scale - mean) / std``."""

    scale: float | None = Field(
        None,
        gt=0,
        description=(
            "Factor on raw pixels. Default: 1/255 for uint8 images, 1/16 for digits, 1 for floats."
        ),
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
        description=(
            "digits (scikit-learn), npz (a file), folder (one sub-folder a class), keras (a "
            "tf.keras.datasets name)."
        ),
    )
    path: str | None = Field(
        None,
        description=(
            "The .npz file; or the image folder, or an archive of it (.tar, .tar.gz, .tgz, .zip). "
            "On this machine or in S3: s3://bucket/key."
        ),
    )
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
        path = self.path or ""
        if "://" in path and not (self.kind in ("npz", "folder") and path.startswith("s3://")):
            what = "folder or an archive of it" if self.kind == "folder" else "file"
            raise ValueError(
                f"data.path: expected a {what} on this machine or s3://bucket/key, received {path}"
            )
        is_elsewhere = path.startswith("s3://") or is_archive(path)
        if self.kind == "folder" and self.storage == "files" and is_elsewhere:
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


class ModelSettings(Settings):
    """The network."""

    framework: Framework = Field(
        "keras",
        description="What the network is made and trained with; torch needs qatline[torch].",
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
            "(torch: .npz), here or in S3 (s3://bucket/key); also looked for beside the data."
        ),
    )
    trained: bool | None = Field(
        None,
        description=(
            "Whether the model is trained already, so that the baseline step only evaluates. "
            "Default: true for a .keras file and when weights are given for the same classes."
        ),
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments for the builder."
    )

    @field_validator("options", mode="before")
    @classmethod
    def _read_json(cls, options: Any) -> Any:
        """Take a JSON object, too.

        The form in which a pipeline hands over options that hold a null.
        """
        is_json = isinstance(options, str) and options.startswith("{")
        return parse_json(options, "model.options", error=ConfigError) if is_json else options

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
    module, colon, function = name.partition(":")
    if colon and not all(part.isidentifier() for part in (*module.split("."), function)):
        return "expected module:function or keras.applications:<Name>"
    return None if name.strip() else "expected the name of a network"
