"""Multi-label classification: any number of classes per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from qat_lib.errors import ConfigError, DataError, UnsupportedModelError
from qatline.components.artifacts.comparison import ChanceTest, PairedTest
from qatline.components.artifacts.metric import Metric
from qatline.components.client.decoding import sigmoid
from qatline.components.tasks.statistics import wilcoxon_test
from qatline.components.tasks.task import Array, Group, Outputs, Samples, Task, one_output

if TYPE_CHECKING:
    from qatline.components.tasks.keras_losses import KerasLoss
    from qatline.components.tasks.torch_losses import TorchLoss


class MultiLabel(Task):
    """0 or 1 for each class: targets ``(samples, classes)``, outputs of the same shape.

    Outputs are logits, or probabilities if those of the whole part all lie in [0, 1].

    Args:
        threshold: probability above which a class counts as predicted.
    """

    name = "multilabel"
    metrics = (
        Metric(name="mean_average_precision", title="mAP", share=True),
        Metric(name="f1", title="F1", share=True),
    )
    augmentations: ClassVar[tuple[str, ...]] = ("none", "shift", "flip", "flip_crop")
    activations: ClassVar[tuple[str, ...]] = ("sigmoid",)

    def __init__(self, *, threshold: float = 0.5, **options: Any) -> None:
        super().__init__(**options)
        if not 0 < threshold < 1:
            raise ConfigError(f"task.options: expected 0 < threshold < 1, received {threshold}")
        self._threshold = threshold
        self._are_chances: bool | None = None

    def class_names(self, targets: Mapping[str, Array], given: Sequence[str]) -> tuple[str, ...]:
        """Return the given names, one per column of the targets."""
        shape = targets["train"].shape
        if given and (len(shape) != 2 or shape[1] != len(given)):
            raise DataError(
                f"train targets: expected a column for each of {len(given)} classes, received "
                f"{shape}"
            )
        return tuple(given)

    def keras_loss(self, activation: str = "", label_smoothing: float = 0.0) -> KerasLoss:
        """Return the binary cross-entropy, the mean over the classes."""
        from qatline.components.tasks.keras_losses import BinaryCrossEntropy

        return BinaryCrossEntropy(label_smoothing, activation in self.activations)

    def torch_loss(self, activation: str = "", label_smoothing: float = 0.0) -> TorchLoss:
        """Return the binary cross-entropy, the mean over the classes."""
        from qatline.components.tasks.torch_losses import TorchBinaryCrossEntropy

        return TorchBinaryCrossEntropy(label_smoothing, activation in self.activations)

    def check_targets(self, targets: Array, where: str) -> Array:
        """Return targets as float32; each must be 0 or 1."""
        if targets.ndim != 2 or targets.dtype.kind not in "biuf":
            raise DataError(
                f"{where}: expected 0 or 1 for each class, (samples, classes); received "
                f"{targets.dtype} {targets.shape}."
            )
        if (bad := ~np.isin(targets, (0, 1)).all(axis=1)).any():
            index = int(np.argmax(bad))
            raise DataError(
                f"{where}: expected 0 or 1 for each class, received {targets[index]} for sample "
                f"{index}."
            )
        return targets.astype(np.float32)

    def classes_of(self, shapes: Mapping[str, Sequence[int | None]], model: str) -> int:
        """Return the size of the last axis of the only output."""
        return int((one_output(shapes, model, "Multi-label classification") or (0,))[-1] or 0)

    def check_outputs(self, shapes: Mapping[str, Sequence[int | None]], model: str) -> None:
        """Expect one output with a value per class."""
        shape, count = one_output(shapes, model, "Multi-label classification"), self._classes
        if shape != (count,):
            raise UnsupportedModelError(
                f"The model {model!r} gives outputs of shape {shape}, but the data has {count} "
                f"classes: expected ({count},). Change the last layer, or data.classes."
            )

    @property
    def _classes(self) -> int:
        return int(self.data.target_shape[0])

    def observe(self, outputs: Outputs) -> None:
        """Decide between logits and probabilities."""
        self._are_chances = _in_unit_interval(np.asarray(outputs))

    def decode(self, outputs: Outputs) -> Array:
        """Return whether each class is predicted, ``(samples, classes)``.

        Without a call of ``observe``, these outputs decide between logits and probabilities.
        """
        return np.asarray(self._chances(outputs) > self._threshold)

    def decoding(self, *, probabilities: bool) -> Mapping[str, Any]:
        """Return the decoding of the predicted classes and their probabilities."""
        return {
            "kind": self.name,
            "classes": list(map(str, self.data.classes)),
            "probabilities": probabilities,
            "threshold": self._threshold,
        }

    def measure(self, outputs: Outputs, targets: Array) -> Samples:
        """Return targets and outputs of each sample: all outputs decide about their meaning."""
        return {"target": targets > 0, "output": np.asarray(outputs)}

    def summarize(self, samples: Samples) -> dict[str, float]:
        """Return mean average precision over the classes with samples, and mean F1 per sample."""
        values = [value for value in self._precisions(samples) if value is not None]
        mean = float(np.mean(values)) if values else float("nan")
        return {"mean_average_precision": mean, "f1": float(self._f1(samples).mean())}

    def groups(self, samples: Samples) -> list[Group]:
        """Return the average precision of each class, with the number of its samples."""
        names = self.data.classes or tuple(map(str, range(self._classes)))
        counts = samples["target"].sum(axis=0)
        found = []
        for name, count, value in zip(names, counts, self._precisions(samples), strict=True):
            found.append(Group(name=name, samples=int(count), value=value))
        return found

    def _precisions(self, samples: Samples) -> list[float | None]:
        from sklearn.metrics import average_precision_score

        found: list[float | None] = []
        values = self._chances(samples["output"])
        for true, chance in zip(samples["target"].T, values.T, strict=True):
            found.append(float(average_precision_score(true, chance)) if true.any() else None)
        return found

    def compare(self, candidate: Samples, champion: Samples) -> PairedTest:
        """Test the F1 scores by Wilcoxon's signed-rank test: average precision has no scores."""
        test = wilcoxon_test(self._f1(candidate), self._f1(champion), self.metrics[1])
        return test.model_copy(update={"name": f"{test.name} of F1"})

    def compare_with_chance(self, samples: Samples, shuffled: Samples) -> ChanceTest:
        """Test how far probabilities lie on the side of their targets, by Wilcoxon's test.

        A bootstrap of average precisions would take a minute.
        """
        ours, theirs = (
            ((2 * each["target"] - 1.0) * self._chances(each["output"])).sum(axis=1)
            for each in (samples, shuffled)
        )
        test = wilcoxon_test(ours, theirs, self.primary)
        return self._against_chance(test, samples, shuffled)

    def differences(self, outputs: Outputs, reference: Outputs) -> Array:
        """Return the largest difference of a probability."""
        ours, theirs = (self._chances(each) for each in (outputs, reference))
        return np.asarray(np.abs(ours - theirs).max(axis=1))

    def same(self, outputs: Outputs, reference: Outputs) -> Array:
        """Return whether exactly the same classes are predicted."""
        equal = (self.decode(outputs) == self.decode(reference)).all(axis=1)
        return np.asarray(equal, np.float64)

    def describe(self, outputs: Outputs, index: int) -> str:
        """Return the names of the predicted classes."""
        return self._names(self.decode(outputs)[index])

    def describe_target(self, target: Array) -> str:
        """Return the names of the classes."""
        return self._names(target > 0)

    def _chances(self, outputs: Outputs) -> Array:
        """Return probabilities in float64."""
        values = np.asarray(outputs).astype(np.float64)
        known = self._are_chances
        if _in_unit_interval(values) if known is None else known:
            return values
        return sigmoid(values)

    def _f1(self, samples: Samples) -> Array:
        """Return the F1 score of each sample."""
        predicted, true = self.decode(samples["output"]), samples["target"]
        both = 2 * (predicted & true).sum(axis=1)
        total = predicted.sum(axis=1) + true.sum(axis=1)
        # Nothing to find and nothing found is right.
        return np.where(total > 0, both / np.maximum(total, 1), 1.0)

    def _names(self, present: Array) -> str:
        names = self.data.classes or tuple(map(str, range(self._classes)))
        return ", ".join(names[index] for index in np.flatnonzero(present)) or "none"


def _in_unit_interval(values: Array) -> bool:
    return bool(values.min() >= 0 and values.max() <= 1)
