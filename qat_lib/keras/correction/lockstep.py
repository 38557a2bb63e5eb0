"""Run a quantized Keras model beside its float form.

Call after call, on the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.calibrators.batches import BatchReader
from qat_lib.keras.graph.layer_graph import Call, LayerGraph
from qat_lib.lockstep.samples import BYTES_PER_ELEMENT, take_samples
from qat_lib.lockstep.steps import BothForms, ModelStep, Prepare, Visit, run_steps


def run_lockstep(
    graph: LayerGraph,
    batches: Sequence[Any],
    visit: Visit,
    *,
    quantized: bool = True,
    prepare: Prepare | None = None,
) -> list[BothForms]:
    """Compute each call in float and quantized, before the next; return the model's outputs.

    See ``qat_lib.lockstep.steps.run_steps``.

    Args:
        graph: the graph of a quantized model.
        batches: batches of inputs; each a tensor, or a list of one for each input of the model.
        visit: called after each call that is no input.
        quantized: whether to compute the quantized form. Default True; a float model has none, and
            its one form stands for both.
        prepare: called before each call is computed in its quantized form. Default None.
    """
    pairs: dict[Any, BothForms] = {}
    for index, tensor in enumerate(graph.inputs):
        given = [tf.cast(_input(batch, index), graph.dtypes[tensor]) for batch in batches]
        pairs[tensor] = BothForms(float=given, quantized=given)
    steps = [_step(call) for call in graph.calls if not call.is_input]
    return run_steps(steps, pairs, visit, quantized=quantized, prepare=prepare, keep=graph.outputs)


def _step(call: Call) -> ModelStep:
    return ModelStep(
        call=call,
        inputs=call.inputs,
        outputs=call.outputs,
        run=partial(_outputs, call),
        without_activation=partial(_without_activation, call),
    )


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


def _outputs(call: Call, inputs: Sequence[Any]) -> list[Any]:
    args, kwargs = call.fill(inputs.__getitem__)
    return list(keras.tree.flatten(call.operation(*args, **kwargs)))


def read_samples(
    graph: LayerGraph, data: Any, samples: int, batch_size: int, *, together: bool = True
) -> list[Any]:
    """Return calibration data's first samples in batches that fit memory.

    Args:
        graph: the graph of the model that takes them.
        data: data in any form that ``calibrate`` takes.
        samples: number of samples, at least 1; fewer where their tensors would take more than
            1 GiB.
        batch_size: size of the batches that an array is cut into.
        together: whether the tensors of all batches are in memory at a time, as in one
            ``run_lockstep``. Default True; else the limit counts the inputs alone.

    Raises:
        CalibrationError: there is no data, or ``samples`` is below 1.
    """
    inputs = BYTES_PER_ELEMENT * sum(_elements(graph.shapes[tensor]) for tensor in graph.inputs)
    size = bytes_per_sample(graph) if together else inputs
    reader = BatchReader(inputs=len(graph.inputs), is_array=_is_array, convert=tf.convert_to_tensor)
    names = [tensor.name for tensor in graph.model.inputs]
    batches = reader.batches(data, batch_size)
    taken = take_samples(batches, samples, names, lambda _: size)
    return list(keras.tree.map_structure(tf.convert_to_tensor, taken))


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
