"""Semantic segmentation: one class per pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from qat_lib.errors import ConfigError, DataError, UnsupportedModelError
from qatline.components.artifacts.metric import Metric
from qatline.components.tasks.class_weights import weights_by_class
from qatline.components.tasks.task import (
    Array,
    Group,
    Outputs,
    Samples,
    Task,
    color_names,
    colors,
    one_output,
    shown_image,
)

if TYPE_CHECKING:
    from qatline.components.tasks.keras_losses import KerasLoss
    from qatline.components.tasks.torch_losses import TorchLoss


class Segmentation(Task):
    """One class per pixel: masks ``(samples, height, width)``, outputs with an axis of classes.

    Outputs are logits or probabilities, ``(samples, height, width, classes)``.

    Args:
        ignore_index: value of pixels that count neither for training nor for metrics.
    """

    name = "segmentation"
    metrics = (
        Metric(name="mean_iou", title="mean IoU", share=True),
        Metric(name="pixel_accuracy", title="pixel accuracy", share=True),
    )
    augmentations: ClassVar[tuple[str, ...]] = ("none", "flip")
    activations: ClassVar[tuple[str, ...]] = ("softmax",)

    def __init__(self, *, ignore_index: int = 255, **options: Any) -> None:
        super().__init__(**options)
        if not 0 <= ignore_index <= 255:
            raise ConfigError(
                f"task.options: expected 0 <= ignore_index <= 255, received {ignore_index}"
            )
        self.ignore_index = ignore_index

    def mirrored(self, targets: Any) -> Any:
        """Return the masks of mirrored images, a tensor like ``targets``."""
        import tensorflow as tf

        return tf.reverse(targets, [2])

    def class_names(self, targets: Mapping[str, Array], given: Sequence[str]) -> tuple[str, ...]:
        """Return the given names, or the class indices as text."""
        if given:
            return tuple(given)
        largest = 0
        for mask in targets["train"]:
            valid = mask[mask != self.ignore_index]
            largest = max(largest, int(valid.max()) if valid.size else 0)
        return tuple(map(str, range(largest + 1)))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """A value per pixel and class."""
        return (*self.data.target_shape, len(self.data.classes))

    def keras_loss(self, activation: str = "", label_smoothing: float = 0.0) -> KerasLoss:
        """Return the cross-entropy, the mean over an image's pixels without the ignored ones."""
        from qatline.components.tasks.keras_losses import PixelCrossEntropy

        classes, probabilities = len(self.data.classes), activation in self.activations
        return PixelCrossEntropy(classes, label_smoothing, probabilities, self.ignore_index)

    def class_weights(
        self, given: Mapping[str, float] | Literal["balanced"], targets: Array, key: str
    ) -> Array:
        """Return the weight of each class, by name or by the number of pixels."""
        masks = (np.asarray(mask) for mask in targets)
        labels = (mask[mask != self.ignore_index] for mask in masks)
        return weights_by_class(given, self.data.classes, labels, key)

    def torch_loss(self, activation: str = "", label_smoothing: float = 0.0) -> TorchLoss:
        """Return the cross-entropy, the mean over an image's pixels without the ignored ones."""
        from qatline.components.tasks.torch_losses import TorchPixelCrossEntropy

        classes, probabilities = len(self.data.classes), activation in self.activations
        return TorchPixelCrossEntropy(classes, label_smoothing, probabilities, self.ignore_index)

    def check_targets(self, targets: Array, where: str) -> Array:
        """Return masks as uint8; values are class indices or ``ignore_index``."""
        count = len(self.data.classes)
        if targets.ndim == 4 and targets.shape[-1] == 1:
            targets = targets[..., 0]
        if targets.ndim != 3 or targets.dtype.kind not in "iu":
            raise DataError(
                f"{where}: expected masks (samples, height, width) of class indices, received "
                f"{targets.dtype} {targets.shape}."
            )
        for index, mask in enumerate(targets):
            bad = (mask != self.ignore_index) & ((mask < 0) | (mask >= count))
            if bad.any():
                raise DataError(
                    f"{where}: expected classes from 0 to {count - 1} or {self.ignore_index} "
                    f"(ignored), received {mask[bad][0]} in mask {index}."
                )
        return targets.astype(np.uint8)

    def classes_of(self, shapes: Mapping[str, Sequence[int | None]], model: str) -> int:
        """Return the size of the last axis of the only output."""
        return int((one_output(shapes, model, "Segmentation") or (0,))[-1] or 0)

    def check_outputs(self, shapes: Mapping[str, Sequence[int | None]], model: str) -> None:
        """Expect one output with the size of the masks and a value per class."""
        shape, count = one_output(shapes, model, "Segmentation"), len(self.data.classes)
        expected = (*self.data.target_shape, count)
        fits = len(shape) == 3 and all(
            ours in (None, theirs) for ours, theirs in zip(shape, expected, strict=True)
        )
        if not fits:
            raise UnsupportedModelError(
                f"The model {model!r} gives outputs of shape {shape}, but the masks have "
                f"{tuple(self.data.target_shape)} and {count} classes: expected {expected}."
            )

    def decode(self, outputs: Outputs) -> Array:
        """Return the class of each pixel, uint8 ``(samples, height, width)``."""
        return np.asarray(np.asarray(outputs).argmax(axis=-1), np.uint8)

    def decoding(self, *, probabilities: bool) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the decoding of each class's share of the pixels."""
        return {"kind": self.name, "classes": list(map(str, self.data.classes))}

    def measure(self, outputs: Outputs, targets: Array) -> Samples:
        """Return each image's intersections, predicted pixels and true pixels by class."""
        predicted, classes = self.decode(outputs), len(self.data.classes)
        counts = np.zeros((3, len(targets), classes), np.int64)
        for index, (ours, true) in enumerate(zip(predicted, targets, strict=True)):
            valid = true != self.ignore_index
            ours, true = ours[valid], true[valid]
            for kind, values in enumerate((true[ours == true], ours, true)):
                counts[kind, index] = np.bincount(values, minlength=classes)[:classes]
        return dict(zip(("intersection", "predicted", "true"), counts, strict=True))

    def summarize(self, samples: Samples) -> dict[str, float]:
        """Return the mean IoU over the classes with true pixels, and the pixel accuracy.

        Pixels are counted over the whole part before they are divided, as in
        ``keras.metrics.MeanIoU``.
        """
        values = [group.value for group in self.groups(samples) if group.value is not None]
        right, total = samples["intersection"].sum(), samples["true"].sum()
        return {
            "mean_iou": float(np.mean(values)) if values else float("nan"),
            "pixel_accuracy": float(right / total) if total else float("nan"),
        }

    def groups(self, samples: Samples) -> list[Group]:
        """Return the IoU of each class, with the number of its true pixels."""
        both, ours, true = (
            samples[name].sum(axis=0) for name in ("intersection", "predicted", "true")
        )
        found = []
        for index, name in enumerate(self.data.classes):
            union = ours[index] + true[index] - both[index]
            value = float(both[index] / union) if true[index] else None
            found.append(Group(name=str(name), samples=int(true[index]), value=value))
        return found

    def details(self, samples: Samples) -> dict[str, Any]:  # noqa: ARG002
        """Return the legend of the pictures."""
        panels = ("input", "target", "FP32", "INT8")
        return {"panels": list(panels), "colors": color_names(self.data.classes)}

    def same(self, outputs: Outputs, reference: Outputs) -> Array:
        """Return the share of pixels with equal classes."""
        equal = self.decode(outputs) == self.decode(reference)
        return np.asarray(equal.reshape(len(equal), -1).mean(axis=1))

    def describe(self, outputs: Outputs, index: int) -> str:
        """Return the classes with the most predicted pixels."""
        return self._largest(self.decode(np.asarray(outputs)[index : index + 1])[0])

    def describe_target(self, target: Array) -> str:
        """Return the classes with the most pixels."""
        return self._largest(target[target != self.ignore_index])

    def picture(
        self, inputs: Any, targets: Array, outputs: Sequence[Outputs], index: int
    ) -> Array | None:
        """Return image, target and predictions side by side, the classes as colours."""
        image = shown_image(inputs, index)
        if image is None:
            return None
        palette = colors(len(self.data.classes))
        masks = [
            targets[index],
            *(self.decode(np.asarray(each)[index : index + 1])[0] for each in outputs),
        ]
        panels = [image]
        for mask in masks:
            known = mask != self.ignore_index
            color = palette[np.where(known, mask, 0)]
            # Over gray, so that colours are those of the legend.
            gray = image.mean(axis=-1, keepdims=True)
            panels.append(np.where(known[..., None], 0.35 * gray + 0.65 * color, gray))
        return np.concatenate(panels, axis=1)

    def _largest(self, mask: Array) -> str:
        counts = np.bincount(np.ravel(mask), minlength=len(self.data.classes))
        order = [index for index in np.argsort(-counts, kind="stable")[:3] if counts[index]]
        return ", ".join(f"{self.data.classes[i]} {counts[i] / mask.size:.0%}" for i in order)
