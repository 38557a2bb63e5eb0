"""Run a quantized Keras model beside its float form.

Call after call, on the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.calibrators.batches import BatchReader, count_samples
from qat_lib.calibrators.collecting import collecting
from qat_lib.errors import CalibrationError
from qat_lib.graph.layer_graph import Call, LayerGraph

BYTES_PER_ELEMENT = 4
MEMORY = 2**30
"""Bytes that the tensors of all samples may take at a time."""
LEAST_SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class BothForms:
    """One tensor in both forms of the model, as batch lists.

    Attributes:
        float: as the model computes it with every quantizer passing its input on.
        quantized: as the quantized model computes it, from quantized tensors in front.
    """

    float: Sequence[Any]
    quantized: Sequence[Any]


Visit = Callable[[Call, tuple[BothForms, ...]], tuple[BothForms, ...] | None]
"""Told of each call and its outputs; gives other outputs for what reads them, or None."""
Prepare = Callable[[Call, Sequence[BothForms], Sequence[Sequence[Any]]], None]
"""Told of each call before it runs in its quantized form, of its inputs and of its float outputs,
by batch. It may change the weights of the call."""


class _PassOn:
    """A collector that takes no note: quantizers pass their inputs on."""

    def observe(self, quantizer: Any, tensor: Any) -> None:
        """Do nothing."""


def run_lockstep(
    graph: LayerGraph,
    batches: Sequence[Any],
    visit: Visit,
    *,
    quantized: bool = True,
    prepare: Prepare | None = None,
) -> None:
    """Compute each call in float and quantized, before the next.

    So ``visit`` can change a layer from the errors that it causes, and what follows sees the
    change. A tensor is kept for as long as a call still reads it. Of a layer with an activation of
    its own ``visit`` sees the outputs in front of it.

    Args:
        graph: the graph of a quantized model.
        batches: batches of inputs; each a tensor, or a list of one for each input of the model.
        visit: called after each call that is no input.
        quantized: whether to compute the quantized form. Default True; a float model has none, and
            its one form stands for both.
        prepare: called before each call is computed in its quantized form. Default None.
    """
    readers = {tensor: len(graph.consumers(tensor)) for tensor in graph.order}
    pairs: dict[str, BothForms] = {}
    for index, tensor in enumerate(graph.inputs):
        given = [tf.cast(_input(batch, index), graph.dtypes[tensor]) for batch in batches]
        pairs[tensor] = BothForms(float=given, quantized=given)
    for call in graph.calls:
        if call.is_input:
            continue
        with _without_activation(call) as activation:
            inputs = [pairs[tensor] for tensor in call.inputs]
            in_float = _compute_float(call, inputs, len(batches))
            if prepare is not None:
                prepare(call, inputs, in_float)
            outputs = _compute(call, inputs, in_float, quantized=quantized)
        outputs = visit(call, outputs) or outputs
        if activation is not None:
            outputs = tuple(_activated(pair, activation) for pair in outputs)
        pairs.update(zip(call.outputs, outputs, strict=True))
        for tensor in call.inputs:
            readers[tensor] -= 1
        for tensor in {*call.inputs, *call.outputs}:
            if readers[tensor] == 0:
                pairs.pop(tensor, None)


def _input(batch: Any, index: int) -> Any:
    return batch[index] if isinstance(batch, (list, tuple)) else batch


@contextmanager
def _without_activation(call: Call) -> Iterator[Callable[[Any], Any] | None]:
    """Yield a weighted layer with its activation off within the block."""
    if call.traits.own_activation is None:
        yield None
        return
    activation = call.core.activation
    call.core.activation = keras.activations.linear
    try:
        yield activation
    finally:
        call.core.activation = activation


def _activated(pair: BothForms, activation: Callable[[Any], Any]) -> BothForms:
    return BothForms(
        float=[activation(x) for x in pair.float],
        quantized=[activation(x) for x in pair.quantized],
    )


def _compute_float(call: Call, inputs: Sequence[BothForms], count: int) -> list[list[Any]]:
    """Return the float outputs of a call, over all batches."""
    found = []
    for batch in range(count):
        with collecting(_PassOn()):
            found.append(_outputs(call, [pair.float[batch] for pair in inputs]))
    return found


def _compute(
    call: Call, inputs: Sequence[BothForms], in_float: list[list[Any]], *, quantized: bool
) -> tuple[BothForms, ...]:
    """Return the outputs of a call in both forms, over all batches."""
    in_integers = in_float
    if quantized:
        in_integers = []
        for batch in range(len(in_float)):
            in_integers.append(_outputs(call, [pair.quantized[batch] for pair in inputs]))
    pairs = []
    for index in range(len(call.outputs)):
        pairs.append(
            BothForms(
                float=[outputs[index] for outputs in in_float],
                quantized=[outputs[index] for outputs in in_integers],
            )
        )
    return tuple(pairs)


def _outputs(call: Call, inputs: Sequence[Any]) -> list[Any]:
    args, kwargs = call.fill(inputs.__getitem__)
    return list(keras.tree.flatten(call.operation(*args, **kwargs)))


def read_samples(graph: LayerGraph, data: Any, samples: int, batch_size: int) -> list[Any]:
    """Return calibration data's first samples in batches that fit memory.

    Args:
        graph: the graph of the model that takes them.
        data: data in any form that ``calibrate`` takes.
        samples: number of samples, at least 1; fewer where their tensors would take more than
            ``MEMORY`` bytes.
        batch_size: size of the batches that an array is cut into.

    Raises:
        CalibrationError: there is no data, or ``samples`` is below 1.
    """
    if samples < 1:
        raise CalibrationError(f"Expected samples to be at least 1. Received: {samples!r}.")
    left = min(samples, max(LEAST_SAMPLES, MEMORY // max(1, bytes_per_sample(graph))))
    reader = BatchReader(inputs=len(graph.inputs), is_array=_is_array, convert=tf.convert_to_tensor)
    taken: list[Any] = []
    for batch in reader.batches(data, batch_size):
        if isinstance(batch, Mapping):
            batch = _in_order(graph, batch)
        taken.append(keras.tree.map_structure(lambda x, n=left: tf.convert_to_tensor(x[:n]), batch))
        left -= count_samples(taken[-1])
        if left <= 0:
            break
    if not taken:
        raise CalibrationError("The calibration data is empty: give at least one batch.")
    return taken


def _in_order(graph: LayerGraph, batch: Mapping[str, Any]) -> list[Any]:
    """Return a batch by name in the order of the model's inputs."""
    names = [tensor.name for tensor in graph.model.inputs]
    if missing := [name for name in names if name not in batch]:
        raise CalibrationError(
            f"Expected the inputs {', '.join(names)}. The data lacks {missing[0]!r}."
        )
    return [batch[name] for name in names]


def _is_array(data: Any) -> bool:
    return isinstance(data, np.ndarray) or bool(tf.is_tensor(data))


def bytes_per_sample(graph: LayerGraph) -> int:
    """Return the peak bytes of one sample's tensors, in both forms.

    An axis of unknown size counts as 1.
    """
    readers = {tensor: len(graph.consumers(tensor)) for tensor in graph.order}
    alive = {tensor: _elements(graph.shapes[tensor]) for tensor in graph.inputs}
    peak = sum(alive.values())
    for call in graph.calls:
        if call.is_input:
            continue
        alive.update({tensor: _elements(graph.shapes[tensor]) for tensor in call.outputs})
        peak = max(peak, sum(alive.values()))
        for tensor in call.inputs:
            readers[tensor] -= 1
            if readers[tensor] == 0:
                alive.pop(tensor, None)
    return 2 * BYTES_PER_ELEMENT * peak


def _elements(shape: Sequence[int | None]) -> int:
    return math.prod(size or 1 for size in shape[1:])
