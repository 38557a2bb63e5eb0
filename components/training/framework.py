"""What the steps need of a framework, and which one is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from qat_lib.export.ranges import RangeOwner
from qat_lib.options import Framework as FrameworkName
from qatline.components.artifacts.models import Epoch, ModelFolder
from qatline.components.settings import ModelSettings, QATSettings, TrainingSettings
from qatline.components.support.events import Progress
from qatline.components.support.frameworks import FrameworkTraits
from qatline.components.training.checkpoints import Checkpoint

if TYPE_CHECKING:
    from qat_lib.export.finish import ExportReport
    from qat_lib.export.options import ExportOptions
    from qat_lib.export.parity_report import ParityReport


class TrainingData(Protocol):
    """What a training reads: the parts ``train`` and ``validation``, in batches."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    @property
    def samples(self) -> int:
        """Number of samples to train on."""

    def train(
        self,
        batch_size: int,
        *,
        shuffle_seed: int,
        augment: str,
        worker: tuple[int, int] = (0, 1),
    ) -> Any:
        """Return the ``tf.data.Dataset`` of an epoch, shuffled anew each time.

        With ``worker=(index, workers)`` it has the rows of one worker of each batch; see
        ``qatline.components.data.tf_pipeline.build_dataset``.
        """

    def validation(self, batch_size: int) -> Any:
        """Return the ``tf.data.Dataset`` of the validation part."""


@dataclass(kw_only=True)
class Oscillation:
    """Filled by a training: what its quantized weights did.

    Attributes:
        oscillating: share of oscillating weights by quantizer, in [0, 1].
        frozen: share of frozen weights by quantizer, in [0, 1].
    """

    oscillating: dict[str, float] = field(default_factory=dict)
    frozen: dict[str, float] = field(default_factory=dict)


class Framework(Protocol):
    """A framework that makes, trains, quantizes and exports models.

    What a model is, only the framework knows. Images come in batches as the data has them,
    float32 ``(samples, height, width, channels)``.

    Attributes:
        traits: its title, packages and optional features.
        layer_check: how a user compares an exported file with its model layer by layer.
    """

    traits: FrameworkTraits
    layer_check: str

    def make_deterministic(self, seed: int) -> None:
        """Seed everything random, and make kernels deterministic."""

    def open_model(
        self, settings: ModelSettings, image_shape: tuple[int, int, int], classes: int
    ) -> tuple[Any, bool]:
        """Return the model that ``settings`` name, and whether it is trained already.

        Raises:
            ConfigError: the name, its options or its weights are wrong.
            UnsupportedModelError: the model does not fit the data, or can't be loaded safely.
        """

    def name(self, model: Any) -> str:
        """Return the model's name."""

    def parameters(self, model: Any) -> int:
        """Return the number of its parameters."""

    def gives_probabilities(self, model: Any) -> bool:
        """Whether its outputs went through a softmax, rather than being logits."""

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

    def predict(self, model: Any, batches: Iterable[np.ndarray]) -> np.ndarray:
        """Return the outputs of inference, batch after batch: float32 ``(samples, classes)``."""

    def bare(self, model: Any) -> Any:
        """Return a model as ``qat_lib.PtqRecipe`` takes it."""

    def inputs(self, model: Any, batches: Iterable[tuple[np.ndarray, Any]]) -> Iterable[Any]:
        """Return batches of the data as the bare model takes them."""

    def with_bare(self, model: Any, bare: Any) -> Any:
        """Return a model with another bare one, such as its quantized form."""

    def quantizers(self, model: Any) -> Mapping[str, RangeOwner]:
        """Return the quantizers of a model by name."""

    def save(self, model: Any, folder: ModelFolder) -> None:
        """Write a model into a step's directory."""

    def load(self, folder: ModelFolder) -> Any:
        """Return the model in a step's directory, with its plan, if any.

        Raises:
            StepError, UnsupportedModelError: it is missing or damaged.
        """

    def export_onnx(
        self, model: Any, path: Path, *, options: ExportOptions, signed: bool, **about: Any
    ) -> ExportReport:
        """Export a model; see ``qat_lib.export_onnx``.

        With ``signed``, unsigned quantizers become signed ones of the same range: other numbers,
        the same structure.
        """

    def check_parity(self, model: Any, path: Path, images: np.ndarray) -> ParityReport:
        """Compare an exported file with its model; see ``qat_lib.check_parity``."""


def choose_framework(name: FrameworkName) -> Framework:
    """Return a framework; what it needs is imported.

    Raises:
        MissingPackageError: a package is not installed.
    """
    home = importlib.import_module(f"qatline.components.training.{name}_framework")
    return cast(Framework, home.FRAMEWORK)


def framework_of(folder: ModelFolder) -> Framework:
    """Return the framework of the model in a step's directory."""
    return choose_framework(folder.framework)
