"""Classification: one class per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from qat_lib.errors import DataError, UnsupportedModelError
from qatline.components.artifacts.comparison import ChanceTest, GroupTest, PairedTest
from qatline.components.artifacts.metric import ACCURACY, Metric
from qatline.components.client.decoding import softmax
from qatline.components.tasks.class_weights import weights_by_class
from qatline.components.tasks.statistics import LEVEL, RESAMPLES, binomial_tail, mcnemar_test
from qatline.components.tasks.task import Array, Group, Outputs, Samples, Task, one_output

if TYPE_CHECKING:
    from qatline.components.tasks.keras_losses import KerasLoss
    from qatline.components.tasks.torch_losses import TorchLoss

TOP5 = Metric(name="top5", title="top-5 accuracy", share=True)

ONE_HOT = (
    "One-hot labels: use y.argmax(axis=1). For any number of classes per sample set "
    "task.name=multilabel."
)
CALIBRATION = Metric(
    name="calibration_error", title="calibration error", higher_is_better=False, share=True
)

_BINS = 15
_BLOCK = 4096
_MOST_CLASSES = 5  # a top-5 accuracy needs more


class Classification(Task):
    """One class per sample: integer labels ``(samples,)``, outputs ``(samples, classes)``.

    Outputs are logits, or probabilities if those of each sample of the whole part sum to 1.
    """

    name = "classification"
    augmentations: ClassVar[tuple[str, ...]] = ("none", "shift", "flip", "flip_crop")
    activations: ClassVar[tuple[str, ...]] = ("softmax",)

    _is_probability: bool | None = None

    @property
    def metrics(self) -> Sequence[Metric]:  # type: ignore[override]
        """Top-1 accuracy, top-5 accuracy for more than five classes, and calibration error."""
        top5 = (TOP5,) if len(self.data.classes) > _MOST_CLASSES else ()
        return (ACCURACY, *top5, CALIBRATION)

    def class_names(self, targets: Mapping[str, Array], given: Sequence[str]) -> tuple[str, ...]:
        """Return the given names, or the class indices as text."""
        labels = class_labels("train targets", targets["train"])
        count = len(given) or int(labels.max()) + 1
        if count > len(labels):
            raise DataError(
                f"train targets: the largest is {labels.max()} with {len(labels)} samples; "
                "expected class indices 0, 1, 2, ..."
            )
        _check_range(labels, count, "train targets")
        present = np.bincount(labels, minlength=count)
        if np.count_nonzero(present) < 2:
            raise DataError(
                "train targets: expected at least two classes, received only class "
                f"{int(labels[0])}"
            )
        if (absent := int(present.argmin())) >= 0 and present[absent] == 0:
            raise DataError(
                f"train targets: class {absent} of 0 to {count - 1} has no sample; expected every "
                "index to be used"
            )
        return tuple(given) or tuple(map(str, range(count)))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """A value per class."""
        return (len(self.data.classes),)

    def keras_loss(self, activation: str = "", label_smoothing: float = 0.0) -> KerasLoss:
        """Return the cross-entropy."""
        from qatline.components.tasks.keras_losses import CrossEntropy

        classes, probabilities = len(self.data.classes), activation in self.activations
        return CrossEntropy(classes, label_smoothing, probabilities)

    def torch_loss(self, activation: str = "", label_smoothing: float = 0.0) -> TorchLoss:
        """Return the cross-entropy."""
        from qatline.components.tasks.torch_losses import TorchCrossEntropy

        classes, probabilities = len(self.data.classes), activation in self.activations
        return TorchCrossEntropy(classes, label_smoothing, probabilities)

    def class_weights(
        self, given: Mapping[str, float] | Literal["balanced"], targets: Array, key: str
    ) -> Array:
        """Return the weight of each class, by name or by the number of samples."""
        return weights_by_class(given, self.data.classes, [targets], key)

    def check_targets(self, targets: Array, where: str) -> Array:
        """Return labels as int64; they must be class indices."""
        labels = class_labels(where, targets)
        _check_range(labels, len(self.data.classes), where)
        return labels

    def classes_of(self, shapes: Mapping[str, Sequence[int | None]], model: str) -> int:
        """Return the size of the last axis of the only output."""
        return int((one_output(shapes, model, "Classification") or (0,))[-1] or 0)

    def check_outputs(self, shapes: Mapping[str, Sequence[int | None]], model: str) -> None:
        """Expect one output with a value per class."""
        shape, count = one_output(shapes, model, "Classification"), len(self.data.classes)
        if shape != (count,):
            raise UnsupportedModelError(
                f"The model {model!r} gives outputs of shape {shape}, but the data has {count} "
                f"classes: expected ({count},). Change the last layer, data.classes or task.name."
            )

    def observe(self, outputs: Outputs) -> None:
        """Decide between logits and probabilities."""
        values, starts = np.asarray(outputs), range(0, len(outputs), _BLOCK)
        self._is_probability = all(
            are_distributions(values[start : start + _BLOCK]).all() for start in starts
        )

    def decode(self, outputs: Outputs) -> Array:
        """Return the class with the largest output, ``(samples,)``."""
        return np.asarray(np.asarray(outputs).argmax(axis=1))

    def decoding(self, *, probabilities: bool) -> Mapping[str, Any]:
        """Return the decoding of a class and its probability."""
        return {
            "kind": self.name,
            "classes": list(map(str, self.data.classes)),
            "probabilities": probabilities,
        }

    def measure(self, outputs: Outputs, targets: Array) -> Samples:
        """Return label, prediction, whether it is right, and its probability, of each sample."""
        values = np.asarray(outputs)
        predicted = self.decode(values)
        found = {
            "label": targets,
            "prediction": predicted,
            "accuracy": predicted == targets,
            # All samples decide which of the two is the probability of the prediction.
            "largest": values.max(axis=1).astype(np.float64),
            "softmax": softmax(values).max(axis=1),
            "is_distribution": are_distributions(values),
        }
        if TOP5 in self.metrics:
            best = np.argpartition(values, -5, axis=1)[:, -5:]
            found["top5"] = (best == targets[:, None]).any(axis=1)
        return found

    def groups(self, samples: Samples) -> list[Group]:
        """Return the accuracy on each class."""
        found = []
        for index, name in enumerate(self.data.classes):
            right = samples["accuracy"][samples["label"] == index]
            value = float(right.mean()) if len(right) else None
            found.append(Group(name=str(name), samples=len(right), value=value))
        return found

    def summarize(self, samples: Samples) -> dict[str, float]:
        """Return the shares of right predictions, and the expected calibration error."""
        shares = [metric.name for metric in self.metrics if metric is not CALIBRATION]
        found = {name: float(samples[name].mean()) for name in shares}
        is_probability = self._is_probability
        if is_probability is None:
            is_probability = bool(samples["is_distribution"].all())
        confidence = samples["largest" if is_probability else "softmax"]
        error = calibration_error(confidence, samples["accuracy"])
        return {**found, CALIBRATION.name: error}

    def details(self, samples: Samples) -> dict[str, Any]:
        """Return the confusion matrix."""
        return {"confusion": self._confusion(samples).tolist()}

    def compare(self, candidate: Samples, champion: Samples) -> PairedTest:
        """Test the difference by McNemar's exact test."""
        return mcnemar_test(candidate["accuracy"], champion["accuracy"])

    def compare_groups(self, candidate: Samples, champion: Samples) -> list[GroupTest]:
        """Test each class by McNemar's test; p-values are corrected for their number (Bonferroni)."""
        labels = candidate["label"]
        # Classes without samples are not tested and cost no level.
        present = len(np.unique(labels))
        found = []
        for index, name in enumerate(self.data.classes):
            ours, theirs = (each["accuracy"][labels == index] for each in (candidate, champion))
            if not len(ours):
                found.append(GroupTest(name=name, samples=0))
                continue
            lost, gained = int((theirs & ~ours).sum()), int((ours & ~theirs).sum())
            found.append(
                GroupTest(
                    name=name,
                    samples=len(ours),
                    candidate=float(ours.mean()),
                    champion=float(theirs.mean()),
                    p_worse=min(binomial_tail(lost, lost + gained) * present, 1.0),
                )
            )
        return found

    def compare_with_chance(self, samples: Samples, shuffled: Samples) -> ChanceTest:  # noqa: ARG002
        """Test whether predictions depend on the labels, by permutation.

        The predictions are paired with shuffled labels, and the p-value is the frequency of at
        least the same accuracy. Constant and random classifiers are never significantly better than
        chance, independent of the class shares.
        """
        labels, answers = samples["label"], samples["prediction"]
        counts = self._confusion(samples)
        hits, generator = int(np.trace(counts)), np.random.default_rng(0)
        as_good = 0
        for _ in range(RESAMPLES):
            as_good += int((generator.permutation(labels) == answers).sum()) >= hits
        return ChanceTest(
            samples=len(labels),
            value=hits / len(labels),
            chance=float((counts.sum(axis=0) * counts.sum(axis=1)).sum()) / len(labels) ** 2,
            # The observed labelling counts as one permutation: the p-value is never 0.
            p_value=(1 + as_good) / (1 + RESAMPLES),
            test=f"permutation test, level {LEVEL:g}",
        )

    def differences(self, outputs: Outputs, reference: Outputs) -> Array:
        """Return the largest difference of a probability."""
        known = self._is_probability
        if known is None:
            known = bool(are_distributions(np.asarray(reference)).all())
        ours, theirs = (
            np.asarray(each, np.float64) if known else softmax(np.asarray(each))
            for each in (outputs, reference)
        )
        return np.asarray(np.abs(ours - theirs).max(axis=1))

    def same(self, outputs: Outputs, reference: Outputs) -> Array:
        """Return whether the predicted classes are equal."""
        return np.asarray(self.decode(outputs) == self.decode(reference), np.float64)

    def align(self, outputs: Outputs, classes: Sequence[str]) -> Outputs:
        """Match the outputs by class names; a class unknown to the data is always wrong."""
        values = np.asarray(outputs)
        if not classes or tuple(classes) == tuple(self.data.classes):
            classes = self.data.classes
        if values.shape[1] != len(classes):
            raise DataError(f"it gives {values.shape[1]} classes, {len(classes)} are known")
        places = {name: index for index, name in enumerate(self.data.classes)}
        unknown = [name for name in classes if name not in places]
        for name in unknown:
            places[name] = len(places)
        aligned = np.full((len(values), len(places)), -np.inf, values.dtype)
        aligned[:, [places[name] for name in classes]] = values
        return aligned

    def describe(self, outputs: Outputs, index: int) -> str:
        """Return the name of the predicted class."""
        return self._name(int(np.asarray(outputs)[index].argmax()))

    def describe_target(self, target: Array) -> str:
        """Return the name of the class."""
        return self._name(int(target))

    def _name(self, index: int) -> str:
        return str(self.data.classes[index])

    def _confusion(self, samples: Samples) -> Array:
        """Return counts (classes, classes): rows are labels, columns are predictions."""
        classes = len(self.data.classes)
        # A champion may predict classes that the data set does not have.
        known = samples["prediction"] < classes
        cells = (samples["label"] * classes + samples["prediction"])[known]
        return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def are_distributions(outputs: Array) -> Array:
    """Return whether each row ``(samples, classes)`` is non-negative and sums to 1.

    Classes that a network does not have, with the output -inf, do not count.
    """
    values = np.where(np.isneginf(outputs), 0.0, outputs.astype(np.float64))
    return np.asarray((values.min(axis=1) >= 0) & (np.abs(values.sum(axis=1) - 1) <= 1e-3))


def calibration_error(confidence: Array, right: Array) -> float:
    """Return the expected calibration error in [0, 1], with 15 bins of equal width.

    Source: Guo et al., On Calibration of Modern Neural Networks, ICML 2017, equation 3.
    """
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    sums = np.bincount(bins, weights=right - confidence, minlength=_BINS)
    return float(np.abs(sums).sum() / len(right))


def class_labels(where: str, targets: Array) -> Array:
    """Return class indices as int64 ``(samples,)``.

    Args:
        where: origin of the targets, for messages.
        targets: whole numbers ``(samples,)`` or ``(samples, 1)``.

    Raises:
        DataError: they are not one class index per sample.
    """
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim != 1:
        raise DataError(
            f"{where}: expected a class index per sample, received {targets.shape}. "
            + (ONE_HOT if targets.ndim == 2 else "For other targets set task.name.")
        )
    if targets.dtype.kind not in "iuf":
        raise DataError(f"{where}: expected integers, received {targets.dtype}")
    is_float = targets.dtype.kind == "f"
    if is_float and (bad := ~np.isfinite(targets) | (targets != np.floor(targets))).any():
        raise DataError(
            f"{where}: expected whole numbers, received {targets[bad][0]} for sample "
            f"{int(np.argmax(bad))}. For other targets set task.name."
        )
    if len(targets) and (low := targets.min()) < 0:
        raise DataError(
            f"{where}: expected 0, 1, 2, ..., received {low} for sample {int(targets.argmin())}"
        )
    # Larger values are identifiers, and would overflow in the frameworks' losses.
    if len(targets) and targets.max() > np.iinfo(np.int32).max:
        raise DataError(f"{where}: expected class indices, received {targets.max()}")
    return targets.astype(np.int64)


def _check_range(labels: Array, count: int, where: str) -> None:
    if (bad := labels >= count).any():
        index = int(np.argmax(bad))
        raise DataError(
            f"{where}: expected 0 to {count - 1} ({count} classes), received {labels[index]} for "
            f"sample {index}"
        )
