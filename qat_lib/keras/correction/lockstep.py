"""Run a quantized Keras model and its float form in lockstep, call by call."""

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
from qat_lib.keras.graph.layer_graph import Call, LayerGraph, bytes_per_sample, fitting_batch
from qat_lib.lockstep.samples import BYTES_PER_ELEMENT, MEMORY, take_samples
from qat_lib.lockstep.steps import BothForms, Form, ModelStep, Prepare, Visit, run_steps


def run_lockstep(
    graph: LayerGraph,
    batches: Sequence[Any],
    visit: Visit,
    *,
    form: Form = "both",
    prepare: Prepare | None = None,
) -> list[BothForms]:
    """Compute each call in float and quantized form before the next; return the model outputs.

    See ``qat_lib.lockstep.steps.run_steps``.

    Args:
        graph: the graph of a quantized model.
        batches: batches of inputs, each a tensor or a list with one tensor per input.
        visit: called after each call except inputs.
        form: the forms to compute. Default: both.
        prepare: called before the quantized form of each call is computed. Default None.
    """
    pairs: dict[Any, BothForms] = {}
    for index, tensor in enumerate(graph.inputs):
        given = [tf.cast(_input(batch, index), graph.dtypes[tensor]) for batch in batches]
        pairs[tensor] = BothForms(float=given, quantized=given)
    steps = [_step(call) for call in graph.calls if not call.is_input]
    return run_steps(steps, pairs, visit, form=form, prepare=prepare, keep=graph.outputs)


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
    """Disable the built-in activation of a call within the block, and yield it, or None."""
    if call.traits.own_activation is None:
        yield None
        return
    # The layer without activation is linear in weights and bias, as the corrections require.
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
    graph: LayerGraph,
    data: Any,
    samples: int,
    batch_size: int,
    *,
    together: bool = True,
    memory: int = MEMORY,
) -> list[Any]:
    """Return the first samples of calibration data, in batches within a memory limit.

    Args:
        graph: the graph of the model.
        data: data in any form accepted by ``calibrate``.
        samples: number of samples, at least 1; fewer if their tensors would exceed ``memory``.
        batch_size: greatest batch size for array data; see ``fitting_batch``.
        together: whether the tensors of all batches are in memory at once, as in one
            ``run_lockstep``. Default True; if False, the limit applies to the inputs only.
        memory: limit in bytes. Default: 1 GiB.

    Raises:
        CalibrationError: the data is empty, or ``samples`` is below 1.
    """
    inputs = sum(math.prod(size or 1 for size in graph.shapes[each][1:]) for each in graph.inputs)
    size = bytes_per_sample(graph) if together else BYTES_PER_ELEMENT * inputs
    reader = BatchReader(inputs=len(graph.inputs), is_array=_is_array, convert=tf.convert_to_tensor)
    names = [tensor.name for tensor in graph.model.inputs]
    batches = reader.batches(data, fitting_batch(graph, batch_size))
    taken = take_samples(batches, samples, names, lambda _: size, memory)
    return list(keras.tree.map_structure(tf.convert_to_tensor, taken))


def _is_array(data: Any) -> bool:
    return isinstance(data, np.ndarray) or bool(tf.is_tensor(data))
