"""Regression: one or several numbers per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from qat_lib.errors import ConfigError, DataError, UnsupportedModelError
from qatline.components.artifacts.comparison import PairedTest
from qatline.components.artifacts.metric import Metric
from qatline.components.tasks.statistics import wilcoxon_test
from qatline.components.tasks.task import Array, Outputs, Samples, Task, one_output

if TYPE_CHECKING:
    from qatline.components.tasks.keras_losses import KerasLoss
    from qatline.components.tasks.torch_losses import TorchLoss

# Number of samples in the report's scatter plot.
_SHOWN = 400


class Regression(Task):
    """Numbers per sample: float targets ``(samples, numbers)``, outputs of the same shape.

    Targets ``(samples,)`` are taken as one number per sample.

    Args:
        loss: ``huber``, squared up to errors of ``delta`` and linear beyond, or ``mse``.
        delta: see ``loss``; in units of the targets.
    """

    name = "regression"
    metrics = (
        Metric(name="mae", title="MAE", higher_is_better=False),
        Metric(name="r2", title="R²"),
    )
    LOSSES: ClassVar[tuple[str, ...]] = ("huber", "mse")

    def __init__(
        self, *, loss: Literal["huber", "mse"] = "huber", delta: float = 1.0, **options: Any
    ) -> None:
        super().__init__(**options)
        if loss not in self.LOSSES:
            raise ConfigError(f"task.options: expected loss huber or mse, received {loss!r}")
        if not delta > 0:
            raise ConfigError(f"task.options: expected delta > 0, received {delta}")
        self._delta = delta if loss == "huber" else None

    def keras_loss(self, activation: str = "", label_smoothing: float = 0.0) -> KerasLoss:  # noqa: ARG002
        """Return the Huber loss or the squared error, the mean over the numbers."""
        from qatline.components.tasks.keras_losses import NumberLoss

        self._refuse_smoothing(label_smoothing)
        return NumberLoss(self._delta)

    def torch_loss(self, activation: str = "", label_smoothing: float = 0.0) -> TorchLoss:  # noqa: ARG002
        """Return the Huber loss or the squared error, the mean over the numbers."""
        from qatline.components.tasks.torch_losses import TorchNumberLoss

        self._refuse_smoothing(label_smoothing)
        return TorchNumberLoss(self._delta)

    def check_targets(self, targets: Array, where: str) -> Array:
        """Return targets as float32 ``(samples, numbers)``; they must be finite."""
        if targets.dtype.kind not in "fiu" or targets.ndim not in (1, 2):
            raise DataError(
                f"{where}: expected numbers (samples,) or (samples, numbers), received "
                f"{targets.dtype} {targets.shape}."
            )
        values = targets.reshape(len(targets), -1).astype(np.float32)
        if (bad := ~np.isfinite(values).all(axis=1)).any():
            index = int(np.argmax(bad))
            raise DataError(
                f"{where}: expected finite targets, received {targets[index]} for sample {index}."
            )
        return values

    def check_outputs(self, shapes: Mapping[str, Sequence[int | None]], model: str) -> None:
        """Expect one output of the shape of the targets."""
        shape = one_output(shapes, model, "Regression")
        expected = tuple(self.data.target_shape)
        if shape != expected:
            raise UnsupportedModelError(
                f"The model {model!r} gives outputs of shape {shape}, but the targets have "
                f"{expected}. Change the last layer, or the target columns."
            )

    def decode(self, outputs: Outputs) -> Array:
        """Return the outputs themselves."""
        return np.asarray(outputs, np.float64)

    def decoding(self, *, probabilities: bool) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the decoding of numbers."""
        return {"kind": self.name}

    def measure(self, outputs: Outputs, targets: Array) -> Samples:
        """Return target, prediction and absolute error of each sample."""
        predicted = self.decode(outputs).reshape(len(targets), -1)
        return {
            "target": targets,
            "prediction": predicted,
            "mae": np.abs(predicted - targets).mean(axis=1),
        }

    def summarize(self, samples: Samples) -> dict[str, float]:
        """Return the mean absolute error and the coefficient of determination.

        The latter is the mean over the numbers, as in ``sklearn.metrics.r2_score``; NaN for
        constant targets.
        """
        errors = ((samples["prediction"] - samples["target"]) ** 2).sum(axis=0)
        spread = ((samples["target"] - samples["target"].mean(axis=0)) ** 2).sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            r2 = 1 - errors / np.where(spread > 0, spread, np.nan)
        return {"mae": float(samples["mae"].mean()), "r2": float(r2.mean())}

    def details(self, samples: Samples) -> dict[str, Any]:
        """Return pairs of target and prediction of the first number, for a scatter plot."""
        pairs = np.stack([samples["target"][:, 0], samples["prediction"][:, 0]], axis=1)
        return {"pairs": np.round(pairs[:_SHOWN].astype(np.float64), 6).tolist()}

    def compare(self, candidate: Samples, champion: Samples) -> PairedTest:
        """Test the absolute errors by Wilcoxon's signed-rank test."""
        return wilcoxon_test(candidate["mae"], champion["mae"], self.primary)
