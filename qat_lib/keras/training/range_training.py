"""Range training: freezing of ranges, and the learning rate of learned ranges."""

from __future__ import annotations

from typing import Any

import keras

from qat_lib.errors import SpecError
from qat_lib.keras.quantizers import model_quantizers
from qat_lib.keras.training.retracing import retrace


class FreezeRanges(keras.callbacks.Callback):
    """Freeze ranges from a given epoch to the end of training.

    This affects the policies ``"ema"``, ``"last"`` and ``"learned"``. Weight ranges with the policy
    ``"current"`` keep following their weights.

    Args:
        epoch: first epoch with frozen ranges, counted from 0 as in Keras. Default 0.

    Examples:
        >>> import qat_lib
        >>> callbacks = [qat_lib.keras.training.FreezeRanges(epoch=4)]
    """

    def __init__(self, epoch: int = 0) -> None:
        super().__init__()
        self.epoch = epoch
        self._followed: list[Any] = []
        self._learned: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Freeze the ranges at the configured epoch, or at the first epoch after it."""
        if epoch < self.epoch or self._followed or self._learned:
            return
        for quantizer in model_quantizers(self.model).values():
            if quantizer.range_policy == "learned" and quantizer.trainable:
                self._learned.append(quantizer)
                quantizer.trainable = False
            elif quantizer.range_policy in ("ema", "last") and not quantizer.frozen:
                self._followed.append(quantizer)
                quantizer.freeze()
        # Tracked ranges have a switch in a variable, effective in traced functions; only
        # ``trainable`` needs a new trace.
        if self._learned:
            retrace(self.model)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Unfreeze the ranges for later calls of ``fit``."""
        for quantizer in self._followed:
            quantizer.unfreeze()
        for quantizer in self._learned:
            quantizer.trainable = True
        if self._learned:
            retrace(self.model)
        self._followed, self._learned = [], []


def range_variables(model: Any) -> list[Any]:
    """Return the trainable variables of the learned ranges of a model."""
    found = []
    for quantizer in model_quantizers(model).values():
        if quantizer.range_policy == "learned":
            found += quantizer.trainable_variables
    return found


def scale_range_rate(optimizer: Any, model: Any, factor: float) -> None:
    """Scale the learning rate of learned ranges, and exclude them from weight decay.

    Args:
        optimizer: an unbuilt Keras optimizer, modified in place.
        model: a quantized model. Without learned ranges, the optimizer does not change.
        factor: learning rate of the ranges over that of the weights, above 0.

    Raises:
        SpecError: ``factor`` is not above 0.

    Examples:
        >>> import keras, qat_lib
        >>> x = keras.Input((4,))
        >>> model = qat_lib.quantize_model(keras.Model(x, keras.layers.Dense(2)(x)))
        >>> optimizer = keras.optimizers.Adam(1e-3)
        >>> qat_lib.keras.training.scale_range_rate(optimizer, model, 0.1)
    """
    if not factor > 0:
        raise SpecError(f"Expected the factor of a rate to be above 0. Received: {factor!r}.")
    ranges = range_variables(model)
    if not ranges:
        return
    optimizer.exclude_from_weight_decay(var_list=ranges)
    if factor == 1.0:
        return
    # ``update_step`` receives a TensorFlow variable or one of its replicas, not the Keras variable:
    # only ``_var_key`` is the same for all of them.
    key, update = optimizer._var_key, optimizer.update_step
    own = {key(variable) for variable in ranges}

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> Any:
        rate = learning_rate * factor if key(variable) in own else learning_rate
        return update(gradient, variable, rate)

    optimizer.update_step = update_step
