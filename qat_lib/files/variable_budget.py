"""Bound the memory of variables while Keras loads a model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf


class VariableBudget:
    """Adds up the variables that are made.

    Attributes:
        allowed: bytes that the variables may take.
        refused: what the first variable beyond that asked for, in words; None while there was none.
    """

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.refused: str | None = None
        self._made = 0

    def create(self, create_next: Any, **arguments: Any) -> Any:
        """Make a variable, if it fits: a variable creator of TensorFlow.

        Raises:
            ValueError: it does not fit.
        """
        shape = _shape(arguments["initial_value"])
        # An element takes at most 8 bytes; all but a few variables have 4.
        asked = math.prod(shape) * 4
        self._made += asked
        if self._made > self.allowed:
            self.refused = self.refused or f"a variable of shape {shape}"
            raise ValueError(self.refused)
        return create_next(**arguments)


@contextmanager
def variable_budget(allowed: int) -> Iterator[VariableBudget]:
    """Refuse more than ``allowed`` bytes of variables within the block.

    Those of this thread count, all together.
    """
    budget = VariableBudget(allowed)
    with tf.variable_creator_scope(budget.create):
        yield budget


def _shape(initial_value: Any) -> tuple[int, ...]:
    """Return a variable's shape without making its value.

    Keras hands over a function that belongs to the variable, whose shape is known. Any other is
    traced.
    """
    if not callable(initial_value):
        return tuple(initial_value.shape)
    for cell in initial_value.__closure__ or ():
        if isinstance(cell.cell_contents, keras.Variable):
            return tuple(cell.cell_contents.shape)
    with tf.Graph().as_default():
        return tuple(initial_value().shape)
