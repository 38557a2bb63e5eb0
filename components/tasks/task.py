"""Base of tasks: the meaning of a network's outputs and of the targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from qat_lib.engines.values import nan_samples
from qat_lib.errors import ConfigError, DataError, UnsupportedModelError
from qatline.components.artifacts.comparison import ChanceTest, GroupTest, PairedTest
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.artifacts.metric import Metric
from qatline.components.tasks.statistics import LEVEL, bootstrap_test

if TYPE_CHECKING:
    from qatline.components.tasks.keras_losses import KerasLoss
    from qatline.components.tasks.torch_losses import TorchLoss

Array = NDArray[Any]
Outputs = Array | Mapping[str, Array]
"""Outputs of a network: an array ``(samples, ...)``, or several by name."""
# Height and width of the picture of a signal.
_SIGNAL_SIZE = (160, 160)
_SHOWN_CHANNELS = 8
Samples = dict[str, Array]
"""Statistics of each sample by name, ``(samples, ...)``: all that a metric is computed from."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A part of the test targets, such as a class: its size, and its metric if measured.

    Attributes:
        name: name of the group.
        samples: number of samples, or of pixels.
        value: value of the primary metric; None without samples.
    """

    name: str
    samples: int
    value: float | None


class Task:
    """Meaning of a network's outputs, with loss and metrics.

    A subclass defines at least ``loss``, ``decode`` and ``score``. Everything else has a default.
    A method ``training_score(targets, outputs)``, which returns the primary metric of each sample of
    a batch of tensors, is optional: with it, the epochs of a training record the metric of the
    training part, too.

    Class attributes:
        name: name in the config, or ``module:Class``.
        metrics: the reported metrics, the primary one first. The gate, the champion and the choice
            of weights use the primary metric.
        augmentations: augmentations of the training inputs that keep the targets valid.
        float_outputs: whether the output layers compute in float by default, with all that follows
            the last weights.
        activations: last operations of networks whose outputs the loss takes as probabilities,
            ``softmax`` or ``sigmoid``; outputs of other networks are logits.

    Args:
        options: keyword arguments of the config's ``task.options``.
    """

    name: ClassVar[str] = ""
    metrics: Sequence[Metric] = (Metric(name="score"),)
    augmentations: ClassVar[tuple[str, ...]] = ("none",)
    float_outputs: ClassVar[bool] = False
    activations: ClassVar[tuple[str, ...]] = ()

    data: DatasetInfo
    """Description of the data set; available in every method except ``__init__``."""

    def __init__(self, **options: Any) -> None:
        if options:
            raise ConfigError(
                f"task.options: {type(self).__name__} takes none, received {', '.join(options)}"
            )

    @property
    def primary(self) -> Metric:
        """The metric that decides."""
        return self.metrics[0]

    # Training

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of one sample's output, for builders of networks. Default: that of the target."""
        return tuple(self.data.target_shape)

    def loss(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of each sample, ``(samples,)`` or ``(samples, ...)``.

        Args:
            targets: tensor of a batch of targets; a float32 tensor in Keras.
            outputs: tensor of the network's outputs, or several by name. Channels are the last
                axis, in PyTorch as well.
        """
        raise NotImplementedError

    def keras_loss(
        self,
        activation: str = "",  # noqa: ARG002
        label_smoothing: float = 0.0,
    ) -> KerasLoss:
        """Return the loss of Keras models. Default: ``loss``.

        Args:
            activation: last operation of the network, see ``activations``. Default: another one, so
                that outputs are logits or numbers.
            label_smoothing: share of a label's weight that goes to all classes alike, in [0, 1).
                Default 0.

        Raises:
            ConfigError: the task has no label smoothing.
        """
        from qatline.components.tasks.keras_losses import OwnLoss

        self._refuse_smoothing(label_smoothing)
        return OwnLoss(self)

    def torch_loss(
        self,
        activation: str = "",  # noqa: ARG002
        label_smoothing: float = 0.0,
    ) -> TorchLoss:
        """Return the loss of PyTorch networks; see ``keras_loss``."""
        from qatline.components.tasks.torch_losses import TorchOwnLoss

        self._refuse_smoothing(label_smoothing)
        return TorchOwnLoss(self)

    def soft_targets(self, targets: Any, outputs: Any, weight: float) -> Any:  # noqa: ARG002
        """Return targets blended with a teacher's outputs, for ``loss``.

        Default: distillation is not supported.

        Args:
            targets: tensor of a batch of targets.
            outputs: tensor of the teacher's outputs, or several by name.
            weight: weight of the teacher's outputs, in (0, 1].

        Raises:
            ConfigError: the task has no soft targets.
        """
        raise ConfigError(
            f"qat.distillation: the task {type(self).__name__} has no soft targets. Set "
            "qat.distillation=0, or define its method soft_targets."
        )

    @property
    def distills(self) -> bool:
        """Whether a teacher's outputs can serve as soft targets."""
        kind = type(self)
        own_loss = kind.keras_loss is not Task.keras_loss
        return own_loss or kind.soft_targets is not Task.soft_targets

    def class_weights(
        self,
        given: Mapping[str, float] | Literal["balanced"],  # noqa: ARG002
        targets: Array,  # noqa: ARG002
        key: str,
    ) -> Array:
        """Return the weight of each class, float32 ``(classes,)``, for ``KerasLoss.class_weights``.

        Default: class weights are not supported.

        Args:
            given: weight by class name, or ``balanced``.
            targets: targets of the training part, possibly memory-mapped.
            key: key of the config, for messages.

        Raises:
            ConfigError: the targets are no class indices, or a class does not exist.
        """
        raise ConfigError(
            f"{key}: the task {self.data.task} has no class index per target, which class weights "
            "need; leave them out"
        )

    def _refuse_smoothing(self, label_smoothing: float) -> None:
        if label_smoothing:
            raise ConfigError(
                f"training.label_smoothing: the task {type(self).__name__} has none; expected 0, "
                f"received {label_smoothing:g}"
            )

    # Evaluation, in NumPy

    def check_targets(self, targets: Array, where: str) -> Array:  # noqa: ARG002
        """Return a part's targets in the type that ``loss`` and ``score`` take.

        Args:
            targets: targets as read, ``(samples, ...)``.
            where: source and part, for messages.

        Raises:
            DataError: the targets do not fit the task.
        """
        return targets

    def mirrored(self, targets: Any) -> Any:
        """Return the targets of mirrored images, for the augmentation ``flip``.

        Args:
            targets: tensor ``(batch, ...)`` of TensorFlow.
        """
        return targets

    def class_names(
        self,
        targets: Mapping[str, Array],  # noqa: ARG002
        given: Sequence[str],
    ) -> tuple[str, ...]:
        """Return the class names of a data set that is being prepared, before ``data`` exists.

        Args:
            targets: targets of each part as read.
            given: names in the config, or of the source; empty if there are none.

        Raises:
            DataError: the targets do not fit the names.
        """
        return tuple(given)

    def classes_of(
        self,
        shapes: Mapping[str, Sequence[int | None]],  # noqa: ARG002
        model: str,  # noqa: ARG002
    ) -> int:
        """Return the number of classes of a network, from the shapes of its outputs. Default: 0.

        Raises:
            UnsupportedModelError: the network does not fit the task.
        """
        return 0

    def check_outputs(self, shapes: Mapping[str, Sequence[int | None]], model: str) -> None:
        """Check the shapes of a network's outputs, without the axis of samples.

        Raises:
            UnsupportedModelError: the network does not fit the task.
        """

    def decode(self, outputs: Outputs) -> Any:
        """Return the predictions of a batch, in the form that users of the network read."""
        raise NotImplementedError

    def decoding(self, *, probabilities: bool) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Return how clients decode the outputs; see ``qatline.components.client.decoding``.

        Default: None. Servers and clients then return the outputs themselves.

        Args:
            probabilities: whether the outputs are probabilities instead of logits.
        """
        return None

    def score(self, predictions: Any, targets: Array) -> Array | Mapping[str, Array]:
        """Return the score of each sample, ``(samples,)``, or several by metric."""
        raise NotImplementedError

    def observe(self, outputs: Outputs) -> None:
        """Receive the outputs of a network for a whole part, before those of its batches.

        A property of the network, such as probabilities instead of logits, is decided here once: a
        single batch may not show it. Default: nothing to decide.
        """

    def measure(self, outputs: Outputs, targets: Array) -> Samples:
        """Return the statistics of each sample of a batch. Default: its scores."""
        scores = self.score(self.decode(outputs), targets)
        if not isinstance(scores, Mapping):
            scores = {self.primary.name: scores}
        return {name: np.asarray(values) for name, values in scores.items()}

    def summarize(self, samples: Samples) -> dict[str, float]:
        """Return the metrics, the primary one first. Default: means over the samples."""
        return {metric.name: float(samples[metric.name].mean()) for metric in self.metrics}

    def groups(self, samples: Samples) -> list[Group]:  # noqa: ARG002
        """Return the primary metric of each class or other group. Default: none."""
        return []

    def details(self, samples: Samples) -> dict[str, Any]:  # noqa: ARG002
        """Return further results in JSON types, for the report. Default: none.

        The report shows these keys:

        - ``confusion``: counts, a row per true class and a column per predicted one.
        - ``pairs``: (target, prediction) of samples, as a scatter plot.
        - ``curves``: objects with ``name``, ``across``, ``up`` (titles of the axes) and ``points``,
          pairs (x, y). Curves of FP32 and the engine with the same name share a plot.
        - ``panels``: titles of the parts of ``picture`` from left to right.
        - ``colors``: colour of each class in ``picture``, such as ``{"road": "#ff0000"}``.
        """
        return {}

    # Comparisons of two networks, or with chance

    def compare(self, candidate: Samples, champion: Samples) -> PairedTest:
        """Test the difference of two networks on the same samples.

        Default: paired bootstrap of the primary metric over the samples.
        """
        return self._bootstrap(candidate, champion)

    def compare_groups(self, candidate: Samples, champion: Samples) -> list[GroupTest]:
        """Compare two networks on each group. Default: values without a test."""
        found = []
        for ours, theirs in zip(self.groups(candidate), self.groups(champion), strict=True):
            found.append(
                GroupTest(
                    name=ours.name,
                    samples=ours.samples,
                    candidate=ours.value,
                    champion=theirs.value,
                )
            )
        return found

    def compare_with_chance(self, samples: Samples, shuffled: Samples) -> ChanceTest:
        """Test whether the outputs depend on the inputs.

        Default: paired bootstrap against the same outputs scored with the targets of other samples.
        Constant outputs are not better than that.

        Args:
            samples: statistics of the network.
            shuffled: statistics of the same outputs with targets of other samples.
        """
        test = self._bootstrap(samples, shuffled)
        return self._against_chance(test, samples, shuffled)

    def _against_chance(self, test: PairedTest, samples: Samples, shuffled: Samples) -> ChanceTest:
        """Return the result of a paired test as a test against chance."""
        return ChanceTest(
            samples=test.samples,
            value=self._value(samples),
            chance=self._value(shuffled),
            p_value=test.p_better,
            test=f"{test.name}, level {LEVEL:g}",
        )

    def resampled(self, samples: Samples) -> Callable[[Array], float]:
        """Return a function from indices of samples to their primary metric.

        A bootstrap calls it thousands of times. Override it for a metric that can be prepared.
        """

        def value(rows: Array) -> float:
            return self._value({name: values[rows] for name, values in samples.items()})

        return value

    def _bootstrap(self, ours: Samples, theirs: Samples) -> PairedTest:
        count = len(next(iter(ours.values())))
        return bootstrap_test(self.resampled(ours), self.resampled(theirs), count, self.primary)

    def _value(self, samples: Samples) -> float:
        return self.summarize(samples)[self.primary.name]

    def differences(self, outputs: Outputs, reference: Outputs) -> Array:
        """Return the difference of each sample's outputs from the reference, ``(samples,)``.

        Default: the largest absolute difference of any output.
        """
        found = [
            np.abs(ours.astype(np.float64) - theirs).reshape(len(ours), -1).max(axis=1)
            for ours, theirs in zip(arrays_of(outputs), arrays_of(reference), strict=True)
        ]
        return np.asarray(np.max(found, axis=0))

    def same(self, outputs: Outputs, reference: Outputs) -> Array | None:  # noqa: ARG002
        """Return each sample's share of equal predictions, ``(samples,)``.

        Default: None, for tasks whose predictions are never exactly equal.
        """
        return None

    def align(self, outputs: Outputs, classes: Sequence[str]) -> Outputs:
        """Return outputs of a network that was trained with other class names.

        Raises:
            DataError: the task has no way to match the outputs.
        """
        if classes and tuple(classes) != self.data.classes:
            raise DataError(f"its classes are {', '.join(classes)}, other than those of the data")
        return outputs

    def describe(self, outputs: Outputs, index: int) -> str:
        """Return one sample's prediction in a few words, for a caption. Default: its numbers.

        They are the outputs where ``decode`` returns no array of numbers.
        """
        predictions = self.decode(rows_of(outputs, slice(index, index + 1)))
        if isinstance(predictions, np.ndarray) and predictions.dtype.kind in "biuf":
            return _numbers(predictions[0])
        return _numbers(arrays_of(outputs)[0][index])

    def describe_target(self, target: Array) -> str:
        """Return one sample's target in a few words, for a caption."""
        return _numbers(target)

    def picture(
        self,
        inputs: Any,
        targets: Array,  # noqa: ARG002
        outputs: Sequence[Outputs],  # noqa: ARG002
        index: int,
    ) -> Array | None:
        """Return a picture of one sample for the report, ``(height, width, 1 or 3)``.

        Default: the first input that is an image, or else a signal, drawn as a line per channel.
        None without such inputs.

        Args:
            inputs: the inputs of a batch, an array or several by name.
            targets: the targets of the batch.
            outputs: outputs of FP32 and of the engine.
            index: sample of the batch.
        """
        image = image_of(inputs, index)
        return _drawn_signal(inputs, index) if image is None else image


def image_of(inputs: Any, index: int) -> Array | None:
    """Return a sample's input as an image, ``(height, width, 1 or 3)``, if it is one.

    Of several inputs it is the first image. Two channels, or more than three, are shown by the
    first one.
    """
    for values in inputs.values() if isinstance(inputs, Mapping) else [inputs]:
        if values.ndim == 4:
            image = values[index]
            return np.array(image if image.shape[-1] == 3 else image[..., :1])
    return None


def colors(count: int) -> Array:
    """Return distinct colours of classes, (count, 3) in [0, 1]: equal steps of the golden angle."""
    import colorsys

    return np.array([colorsys.hsv_to_rgb(i * 0.618034 % 1, 0.75, 0.95) for i in range(count)])


def color_names(names: Sequence[object]) -> dict[str, str]:
    """Return the colour of each class as ``#rrggbb``, see ``colors``."""
    values = (colors(len(names)) * 255).round().astype(int)
    texts = ["#{:02x}{:02x}{:02x}".format(*rgb) for rgb in values]
    return dict(zip(map(str, names), texts, strict=True))


def _drawn_signal(inputs: Any, index: int) -> Array | None:
    """Return the first signal of a sample, ``(steps, channels)``, as lines on white."""
    from PIL import Image, ImageDraw

    every = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    signal = next((values[index] for values in every if values.ndim == 3), None)
    if signal is None or len(signal) < 2:
        return None
    signal = signal[:, :_SHOWN_CHANNELS].astype(np.float64)
    (height, width), margin = _SIGNAL_SIZE, 6
    low, high = float(signal.min()), float(signal.max())
    x = np.linspace(margin, width - margin, len(signal))
    y = height - margin - (signal - low) / max(high - low, 1e-12) * (height - 2 * margin)
    picture = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(picture)
    for line, color in zip(y.T, color_names(range(y.shape[1])).values(), strict=True):
        draw.line(np.stack([x, line], axis=1).ravel().tolist(), fill=color, width=2)
    return np.asarray(picture) / 255.0


def shown_image(inputs: Any, index: int) -> Array | None:
    """Return a sample's input as an image ``(height, width, 3)`` with values from 0 to 1, if it is one."""
    image = image_of(inputs, index)
    if image is None:
        return None
    low, high = float(image.min()), float(image.max())
    scaled = (image - low) / max(high - low, 1e-12)
    return np.array(np.broadcast_to(scaled, (*image.shape[:2], 3)))


def check_numbers(outputs: Outputs, model: str) -> None:
    """Reject outputs with NaN: their predictions are undefined.

    Args:
        outputs: outputs ``(samples, ...)``.
        model: name of the model for the message.

    Raises:
        DataError: a sample's outputs contain NaN.
    """
    for values in arrays_of(outputs):
        if found := nan_samples(values):
            raise DataError(
                f"Expected numbers from {model}. Its outputs are NaN for {found} of {len(values)} "
                "samples of a batch, so its quality is not defined. Look for weights that are NaN, "
                "a division by zero or an overflow (in FP16, values beyond 65504), and correct the "
                "model or the training."
            )


def holds_nan(outputs: Outputs) -> bool:
    """Return whether any output is NaN."""
    return any(nan_samples(values) for values in arrays_of(outputs))


def rows_of(outputs: Outputs, rows: slice) -> Outputs:
    """Return the outputs of some samples."""
    if isinstance(outputs, Mapping):
        return {name: values[rows] for name, values in outputs.items()}
    return np.asarray(outputs[rows])


def samples_of(outputs: Outputs) -> int:
    """Return the number of samples of outputs."""
    return len(arrays_of(outputs)[0])


def shapes_of(outputs: Outputs) -> list[tuple[int, ...]]:
    """Return the shapes of the outputs."""
    return [values.shape for values in arrays_of(outputs)]


def joined(batches: Sequence[Samples]) -> Samples:
    """Return the statistics of consecutive batches as those of one."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def one_output(
    shapes: Mapping[str, Sequence[int | None]], model: str, task: str
) -> tuple[Any, ...]:
    """Return the shape of a network's only output.

    Raises:
        UnsupportedModelError: it has several.
    """
    if len(shapes) != 1:
        raise UnsupportedModelError(
            f"{task} takes a network with one output; {model!r} has {len(shapes)} "
            f"({', '.join(shapes)}). For several outputs set task.name=module:Task."
        )
    (shape,) = shapes.values()
    return tuple(shape)


def arrays_of(outputs: Outputs) -> list[Array]:
    """Return the arrays of outputs, by name: frameworks and engines order them differently."""
    if isinstance(outputs, Mapping):
        return [outputs[name] for name in sorted(outputs)]
    return [np.asarray(outputs)]


def _numbers(values: Any) -> str:
    flat = np.ravel(values)
    more = " ..." if flat.size > 4 else ""
    return ", ".join(f"{value:.4g}" for value in flat[:4]) + more
