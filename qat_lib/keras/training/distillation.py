"""Distillation with the outputs of a trained model as soft targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def soft_targets(
    teacher: Any, classes: int, weight: float = 1.0, *, probabilities: bool = False
) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return a function for ``tf.data.Dataset.map`` that blends labels with teacher probabilities.

    Up to a constant, cross-entropy with the blend is the weighted sum of the cross-entropy with the
    labels and the divergence from the teacher's probabilities (Hinton et al. 2015,
    https://arxiv.org/abs/1503.02531, at temperature 1).

    Args:
        teacher: a trained model, such as the float model.
        classes: number of classes of the teacher.
        weight: weight of the teacher's probabilities, in [0, 1]; the rest is for the labels.
            Default 1.
        probabilities: whether the teacher returns probabilities instead of logits. Default False.

    Returns:
        A function from a batch ``(x, y)`` with integer labels ``(samples,)`` to ``x`` and soft
        targets ``(samples, classes)``; train with ``keras.losses.CategoricalCrossentropy``.

    Examples:
        >>> import keras, qat_lib, tensorflow as tf
        >>> x = keras.Input((2,))
        >>> teacher = keras.Model(x, keras.layers.Dense(3)(x))
        >>> data = tf.data.Dataset.from_tensors((tf.zeros((4, 2)), tf.zeros(4, tf.int64)))
        >>> images, targets = next(iter(data.map(qat_lib.keras.training.soft_targets(teacher, 3))))
        >>> targets.shape
        TensorShape([4, 3])
    """

    def blend(x: Any, y: Any) -> tuple[Any, Any]:
        # In inference mode: a teacher in training mode would update its statistics.
        outputs = teacher(x, training=False)
        soft = outputs if probabilities else tf.nn.softmax(outputs)
        return x, (1.0 - weight) * tf.one_hot(y, classes) + weight * soft

    return blend
