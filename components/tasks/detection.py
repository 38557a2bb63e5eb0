"""Object detection: boxes with classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from qat_lib.errors import ConfigError, DataError, UnsupportedModelError
from qatline.components.artifacts.metric import Metric
from qatline.components.client.decoding import BOX, detections
from qatline.components.tasks.boxes import AveragePrecision, match, mean_of
from qatline.components.tasks.task import (
    Array,
    Group,
    Outputs,
    Samples,
    Task,
    arrays_of,
    color_names,
    colors,
    rows_of,
    shown_image,
)

if TYPE_CHECKING:
    from qatline.components.tasks.keras_losses import KerasLoss
    from qatline.components.tasks.torch_losses import TorchLoss

TARGET = 6
"""Values of a target: x1, y1, x2, y2 in pixels of the input, class, and 1 for a crowd."""

_SHOWN_CURVES = 12
_SHOWN_SCORE = 0.3
_SHOWN_SIDE = 240
# Width of a box's lines in pixels.
_LINE = 2


class Detection(Task):
    """Boxes with classes: targets ``(samples, boxes, 6)``, outputs one or several maps.

    A target is x1, y1, x2, y2 in pixels of the input, a class index and 1 for a crowd, else 0;
    missing ones have class -1. Each output is a map ``(samples, rows, columns, classes + 4)`` whose
    locations divide the image evenly. A location has a logit per class, the offset of a box's
    centre and the size of the box before a softplus; see ``Levels``. Maps of several sizes share
    the boxes by size.

    Args:
        score_threshold: score below which a box is left out.
        iou_threshold: IoU above which the worse of two boxes of a class is left out.
        max_detections: largest number of boxes of an image.
    """

    name = "detection"
    metrics = (
        Metric(name="map", title="mAP 50-95", share=True),
        Metric(name="map50", title="mAP 50", share=True),
    )
    augmentations: ClassVar[tuple[str, ...]] = ("none", "flip")
    float_outputs: ClassVar[bool] = True

    def __init__(
        self,
        *,
        score_threshold: float = 0.05,
        iou_threshold: float = 0.6,
        max_detections: int = 100,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        for name, value in (("score", score_threshold), ("iou", iou_threshold)):
            if not 0 < value < 1:
                raise ConfigError(
                    f"task.options: expected 0 < {name}_threshold < 1, received {value}"
                )
        if max_detections < 1:
            raise ConfigError(
                f"task.options: expected max_detections >= 1, received {max_detections}"
            )
        self._score, self._iou, self._most = score_threshold, iou_threshold, max_detections

    @property
    def distills(self) -> bool:
        """The maps of a teacher cannot serve as soft targets."""
        return False

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Values of a location; the network decides on the sizes of its maps."""
        return (len(self.data.classes) + BOX,)

    @cached_property
    def _image(self) -> tuple[int, int]:
        """Height and width of the image among the inputs."""
        for info in self.data.inputs.values():
            if len(info.shape) == 3:
                return info.shape[0], info.shape[1]
        raise DataError("detection: expected an image among the inputs, received none")

    def mirrored(self, targets: Any) -> Any:
        """Return the boxes of mirrored images, a tensor like ``targets``."""
        import tensorflow as tf

        x1, y1, x2, y2, *rest = tf.unstack(targets, axis=2)
        width = self._image[1]
        return tf.stack([width - x2, y1, width - x1, y2, *rest], axis=2)

    def class_names(self, targets: Mapping[str, Array], given: Sequence[str]) -> tuple[str, ...]:
        """Return the given names, or the class indices as text."""
        if given:
            return tuple(given)
        train = targets["train"]
        known = train.ndim == 3 and train.shape[2] == TARGET and train.size
        return tuple(map(str, range(int(train[..., 4].max()) + 1 if known else 0)))

    def check_targets(self, targets: Array, where: str) -> Array:
        """Return targets as float32 ``(samples, boxes, 6)``."""
        if targets.ndim != 3 or targets.shape[2] != TARGET or targets.dtype.kind not in "fiu":
            raise DataError(
                f"{where}: expected boxes (samples, boxes, {TARGET}) of x1, y1, x2, y2, class and "
                f"crowd, received {targets.dtype} {targets.shape}."
            )
        values, count = targets.astype(np.float32), len(self.data.classes)
        label, crowd = values[..., 4], values[..., 5]
        is_class = (label >= 0) & (label < count) & (label == np.floor(label))
        ordered = (values[..., :2] < values[..., 2:4]).all(axis=2)
        right = is_class & ordered & np.isfinite(values).all(axis=2) & np.isin(crowd, (0, 1))
        if (bad := ~(right | (label == -1))).any():
            sample, box = np.argwhere(bad)[0]
            raise DataError(
                f"{where}: expected x1 < x2, y1 < y2, a class from 0 to {count - 1} (-1 for a "
                f"missing box) and crowd 0 or 1, received {values[sample, box].tolist()} for box "
                f"{box} of sample {sample}."
            )
        return values

    def classes_of(self, shapes: Mapping[str, Sequence[int | None]], model: str) -> int:  # noqa: ARG002
        """Return the number of values of a location without those of a box."""
        sizes = [shape[-1] or 0 for shape in shapes.values() if len(shape) == 3]
        return max(max(sizes, default=0) - BOX, 0)

    def check_outputs(self, shapes: Mapping[str, Sequence[int | None]], model: str) -> None:
        """Expect maps of different sizes with the values of a location in the last axis."""
        (values,), sizes = self.output_shape, set()
        for name, shape in shapes.items():
            rows, columns = tuple(shape)[:2] if len(shape) == 3 else (None, None)
            fits = rows and columns and rows <= self._image[0] and columns <= self._image[1]
            if not fits or shape[-1] != values or (rows, columns) in sizes:
                raise UnsupportedModelError(
                    f"The model {model!r} gives outputs of shape {tuple(shape)} ({name}). "
                    f"Detection takes one or several maps (rows, columns, {values}) of different "
                    f"sizes: a value for each of {len(self.data.classes)} classes and {BOX} for a "
                    "box. Change the heads, or set task.name=module:Task."
                )
            sizes.add((rows, columns))

    def keras_loss(self, activation: str = "", label_smoothing: float = 0.0) -> KerasLoss:  # noqa: ARG002
        """Return quality focal loss plus generalized IoU loss."""
        from qatline.components.tasks.keras_losses import BoxLoss

        self._refuse_smoothing(label_smoothing)
        return BoxLoss(len(self.data.classes), self._image)

    def torch_loss(self, activation: str = "", label_smoothing: float = 0.0) -> TorchLoss:  # noqa: ARG002
        """Return quality focal loss plus generalized IoU loss."""
        from qatline.components.tasks.torch_losses import TorchBoxLoss

        self._refuse_smoothing(label_smoothing)
        return TorchBoxLoss(len(self.data.classes), self._image)

    def decode(self, outputs: Outputs) -> Array:
        """Return the boxes of each image, ``(samples, max_detections, 6)``.

        A box is x1, y1, x2, y2, score and class, best first; missing ones have score 0 and class
        -1.
        """
        return detections(
            arrays_of(outputs),
            image=self._image,
            classes=len(self.data.classes),
            score=self._score,
            iou=self._iou,
            most=self._most,
        )

    def decoding(self, *, probabilities: bool) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the decoding of boxes with class and score."""
        return {
            "kind": self.name,
            "classes": list(map(str, self.data.classes)),
            "image": list(self._image),
            "score": self._score,
            "iou": self._iou,
            "most": self._most,
        }

    def measure(self, outputs: Outputs, targets: Array) -> Samples:
        """Return each image's detections, their matches at ten thresholds, and its boxes."""
        return match(self.decode(outputs), targets, len(self.data.classes))

    def summarize(self, samples: Samples) -> dict[str, float]:
        """Return COCO's mean average precision at IoU 0.5 to 0.95, and at 0.5."""
        found = AveragePrecision(samples).by_class()
        return {"map": mean_of(found), "map50": mean_of(found[:, 0])}

    def resampled(self, samples: Samples) -> Callable[[Array], float]:
        """Return the mAP of any images; their detections are matched and sorted only once."""
        return AveragePrecision(samples).mean

    def groups(self, samples: Samples) -> list[Group]:
        """Return the average precision of each class, with the number of its boxes."""
        values, counts = AveragePrecision(samples).by_class(), samples["boxes"].sum(axis=0)
        found = []
        for name, count, value in zip(self.data.classes, counts, values, strict=True):
            mean = float(value.mean()) if count else None
            found.append(Group(name=str(name), samples=int(count), value=mean))
        return found

    def details(self, samples: Samples) -> dict[str, Any]:
        """Return the precision by recall at IoU 0.5 of the most frequent classes, and the legend."""
        counts = samples["boxes"].sum(axis=0)
        curves = AveragePrecision(samples).curves()
        shown = [i for i in np.argsort(-counts, kind="stable")[:_SHOWN_CURVES] if counts[i]]
        return {
            "curves": [
                {
                    "name": str(self.data.classes[index]),
                    "across": "recall at IoU 0.5",
                    "up": "precision",
                    "points": np.round(curves[index], 4).tolist(),
                }
                for index in shown
            ],
            "panels": ["target", "FP32", "INT8"],
            "colors": color_names(self.data.classes),
        }

    def describe(self, outputs: Outputs, index: int) -> str:
        """Return the number of boxes of each class."""
        return self._counts(self._shown(outputs, index)[:, 5])

    def describe_target(self, target: Array) -> str:
        """Return the number of boxes of each class."""
        return self._counts(target[:, 4])

    def _counts(self, labels: Array) -> str:
        counts = np.bincount(labels[labels >= 0].astype(int), minlength=len(self.data.classes))
        found = [f"{n} {name}" for n, name in zip(counts, self.data.classes, strict=True) if n]
        return ", ".join(found) or "no boxes"

    def _shown(self, outputs: Outputs, index: int) -> Array:
        """Return the boxes of a sample that are shown."""
        found = self.decode(rows_of(outputs, slice(index, index + 1)))[0]
        return np.asarray(found[found[:, 4] >= _SHOWN_SCORE])

    def picture(
        self, inputs: Any, targets: Array, outputs: Sequence[Outputs], index: int
    ) -> Array | None:
        """Return the image with the boxes of target and predictions, side by side."""
        plain = shown_image(inputs, index)
        if plain is None:
            return None
        factor = max(1, round(_SHOWN_SIDE / min(plain.shape[:2])))
        plain = plain.repeat(factor, axis=0).repeat(factor, axis=1)
        shown = [(targets[index][:, :4], targets[index][:, 4])]
        for each in outputs:
            found = self._shown(each, index)
            shown.append((found[:, :4], found[:, 5]))
        palette = colors(len(self.data.classes))
        panels = [_drawn(plain, boxes * factor, labels, palette) for boxes, labels in shown]
        return np.concatenate(panels, axis=1)


def _drawn(image: Array, boxes: Array, labels: Array, palette: Array) -> Array:
    """Return an image with rectangles in the colours of their classes."""
    drawn = image.copy()
    last = np.array(image.shape[1::-1] * 2) - 1
    for box, label in zip(boxes, labels.astype(int), strict=True):
        if label >= 0:
            x1, y1, x2, y2 = box.round().astype(int).clip(0, last)
            inside = drawn[y1 + _LINE : y2 + 1 - _LINE, x1 + _LINE : x2 + 1 - _LINE].copy()
            drawn[y1 : y2 + 1, x1 : x2 + 1] = palette[label]
            height, width = inside.shape[:2]
            drawn[y1 + _LINE : y1 + _LINE + height, x1 + _LINE : x1 + _LINE + width] = inside
    return drawn
