"""Interface between the steps and a framework, and its selection."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from qat_lib.export.ranges import RangeOwner
from qat_lib.options import Framework as FrameworkName
from qatline.components.artifacts.models import Epoch, ModelFolder
from qatline.components.data.part import Augment
from qatline.components.settings import ModelSettings, QATSettings, TrainingSettings
from qatline.components.support.events import Progress
from qatline.components.support.frameworks import FrameworkTraits, import_framework
from qatline.components.tasks.task import Outputs, Task
from qatline.components.training.checkpoints import Checkpoint

if TYPE_CHECKING:
    from qat_lib.export.finish import ExportReport
    from qat_lib.export.options import ExportOptions
    from qat_lib.export.parity_report import ParityReport


Shapes = tuple[int, ...] | Mapping[str, tuple[int, ...]]
"""Shape of a sample of the only input, or of each of several by name."""


class TrainingData(Protocol):
    """Source of a training's data: the parts ``train`` and ``validation``, in batches."""

    @property
    def task(self) -> Task:
        """Meaning of the targets."""

    @property
    def samples(self) -> int:
        """Number of training samples."""

    @property
    def targets(self) -> Any:
        """Targets of the training part, possibly memory-mapped."""

    def train(
        self,
        batch_size: int,
        *,
        shuffle_seed: int,
        augment: Augment,
        worker: tuple[int, int] = (0, 1),
    ) -> Any:
        """Return the ``tf.data.Dataset`` of an epoch; each iteration shuffles it again.

        Its batches are ``(x, y)``, or ``(x, y, weights)`` if the samples have weights.
        With ``worker=(index, workers)`` it contains one worker's rows of each batch; see
        ``qatline.components.data.tf_pipeline.build_dataset``.
        """

    def validation(self, batch_size: int) -> Any:
        """Return the ``tf.data.Dataset`` of the validation part."""


@dataclass(kw_only=True)
class Oscillation:
    """Oscillation of quantized weights, filled in by a training.

    Attributes:
        oscillating: share of oscillating weights by quantizer, in [0, 1].
        frozen: share of frozen weights by quantizer, in [0, 1].
    """

    oscillating: dict[str, float] = field(default_factory=dict)
    frozen: dict[str, float] = field(default_factory=dict)


class Framework(Protocol):
    """A framework that builds, trains, quantizes and exports models.

    The type of a model is private to the framework. Inputs and outputs have the layout of the
    data: float32 batches ``(samples, ..., channels)``, or several by name.

    Attributes:
        traits: its title, packages and optional features.
        layer_check: command or call that compares an exported file with its model layer by layer.
    """

    traits: FrameworkTraits
    layer_check: str

    def make_deterministic(self, seed: int) -> None:
        """Seed all random generators and make kernels deterministic."""

    def build_model(self, settings: ModelSettings, shapes: Shapes, task: Task) -> Any:
        """Return the model selected by ``settings`` without weights, except those in its file.

        It is not checked. Arguments and errors match ``open_model``.
        """

    def load_weights(self, model: Any, path: str) -> None:
        """Load a weights file into a model.

        Raises:
            ConfigError, UnsupportedModelError: the file is damaged or does not fit.
        """

    def open_model(self, settings: ModelSettings, shapes: Shapes, task: Task) -> tuple[Any, bool]:
        """Return the model selected by ``settings``, and whether it is already trained.

        Args:
            settings: the model section.
            shapes: shape of a sample of the only input, or of each of several by name.
            task: meaning of its outputs.

        Raises:
            ConfigError: the name, its options or its weights are wrong.
            UnsupportedModelError: the model does not fit the data, or cannot be loaded safely.
        """

    def check_model(self, model: Any, shapes: Shapes, task: Task) -> None:
        """Check that a model takes such inputs and fits the task.

        Raises:
            UnsupportedModelError: it does not.
        """

    def name(self, model: Any) -> str:
        """Return the model's name."""

    def parameters(self, model: Any) -> int:
        """Return the number of its parameters."""

    def last_activation(self, model: Any) -> str:
        """Return the last operation, ``softmax`` or ``sigmoid``; empty for others."""

    def fit(
        self,
        model: Any,
        data: Path | TrainingData,
        schedule: TrainingSettings | QATSettings,
        *,
        seed: int,
        progress: Progress,
        label_smoothing: float = 0.0,
        keep_best: bool = False,
        teacher: Any = None,
        distillation: float = 0.0,
        oscillation: Oscillation | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> list[Epoch]:
        """Train a model in place; see ``qatline.components.training.fitting.fit``."""

    def predict(self, model: Any, batches: Iterable[Any]) -> Iterator[Outputs]:
        """Yield the inference outputs of each batch of inputs."""

    def mean_loss(
        self, model: Any, task: Task, targets: Any, outputs: Outputs, label_smoothing: float
    ) -> float:
        """Return the mean loss of a batch's outputs.

        Raises:
            ConfigError: the task has no label smoothing.
        """

    def bare(self, model: Any) -> Any:
        """Return the model in the form that ``qat_lib.PtqRecipe`` expects."""

    def inputs(self, model: Any, batches: Iterable[tuple[Any, Any]]) -> Iterable[Any]:
        """Return batches of the data in the form that the bare model expects."""

    def with_bare(self, model: Any, bare: Any) -> Any:
        """Return the model with another bare model, such as its quantized form."""

    def quantizers(self, model: Any) -> Mapping[str, RangeOwner]:
        """Return the quantizers of a model by name."""

    def save(self, model: Any, folder: ModelFolder) -> None:
        """Write a model into a step's directory."""

    def load(self, folder: ModelFolder) -> Any:
        """Return the model in a step's directory, with its plan, if any.

        Raises:
            StepError, UnsupportedModelError: the model is missing or damaged.
        """

    def export_onnx(
        self, model: Any, path: Path, *, options: ExportOptions, signed: bool, **about: Any
    ) -> ExportReport:
        """Export a model; see ``qat_lib.export_onnx``.

        With ``signed``, unsigned quantizers become signed with the same range: the values change,
        the structure does not.
        """

    def check_parity(self, model: Any, path: Path, inputs: Any) -> ParityReport:
        """Compare an exported file with its model; see ``qat_lib.check_parity``."""


def choose_framework(name: FrameworkName) -> Framework:
    """Import and return a framework.

    Raises:
        MissingPackageError: a package is not installed.
    """
    import_framework(name)
    home = importlib.import_module(f"qatline.components.training.{name}_framework")
    return cast(Framework, home.FRAMEWORK)


def framework_of(folder: ModelFolder) -> Framework:
    """Return the framework of the model in a step's directory."""
    return choose_framework(folder.framework)
