"""Run a quantized PyTorch model in parallel with its float form, node by node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from qat_lib.calibrators.batches import BatchReader
from qat_lib.lockstep.samples import BYTES_PER_ELEMENT, MEMORY, take_samples
from qat_lib.lockstep.steps import (
    BothForms,
    Form,
    ModelStep,
    Visit,
    count_readers,
    release,
    run_steps,
)
from qat_lib.torch.calibration import as_tensor
from qat_lib.torch.graph import ModuleGraph, inputs_of
from qat_lib.torch.inference import in_inference
from qat_lib.torch.shapes import chosen_arguments, required_arguments


def run_lockstep(
    graph: ModuleGraph, batches: Sequence[Any], visit: Visit, *, form: Form = "both"
) -> list[BothForms]:
    """Compute call by call in float and quantized form, and return the outputs of the model.

    See ``qat_lib.lockstep.steps.run_steps``. The model runs in inference mode, without gradients.

    Args:
        graph: the graph of a quantized model.
        batches: batches of inputs from ``read_samples``.
        visit: called after each call.
        form: the forms to compute. Default: both.
    """
    inputs = [_arguments(graph, batch) for batch in batches]
    given: dict[Hashable, BothForms] = {}
    for index, node in enumerate(_placeholders(graph)):
        values = [batch[index] for batch in inputs]
        # Separate copies for both forms: an operation may change its input in place.
        copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in values]
        given[node] = BothForms(float=values, quantized=copies)
    (output,) = (node for node in graph.model.graph.nodes if node.op == "output")
    with in_inference(graph.model), torch.no_grad():
        return run_steps(_steps(graph), given, visit, form=form, keep=list(inputs_of(output)))


def read_samples(
    graph: ModuleGraph, data: Any, samples: int, batch_size: int, *, memory: int = MEMORY
) -> list[Any]:
    """Return the first samples of calibration data, on the model's device.

    Args:
        graph: the graph of the model.
        data: data in any form accepted by ``qat_lib.torch.calibrate``.
        samples: number of samples, at least 1; fewer if their tensors would exceed ``memory``.
        batch_size: batch size for data given as arrays.
        memory: limit in bytes. Default: 1 GiB.

    Raises:
        CalibrationError: the data are empty, or ``samples`` is below 1.
    """
    cost = partial(_bytes_per_sample, graph)
    _, batches = first_samples(graph.model, data, samples, batch_size, cost=cost, memory=memory)
    return batches


def first_samples(
    module: nn.Module,
    data: Any,
    samples: int,
    batch_size: int,
    *,
    cost: Callable[[Any], int] = lambda _: 0,
    memory: int = MEMORY,
) -> tuple[list[str], list[Any]]:
    """Return the arguments that data is for, and its first samples; see ``read_samples``.

    Args:
        module: any module, traced or not.
        data, samples, batch_size, memory: as for ``read_samples``. Data is read once.
        cost: returns the bytes of one sample's tensors for the first batch. Default: 0, no limit.
    """
    batches = _batches(module, data, batch_size)
    first = list(islice(batches, 1))
    names = chosen_arguments(module, first[0] if first else None)
    taken = take_samples(chain(first, batches), samples, names, cost, memory)
    return names, [_on_device(module, batch) for batch in taken]


def data_arguments(module: nn.Module, data: Any) -> list[str]:
    """Return the names of forward's arguments that data is for, from its first batch.

    Raises:
        CalibrationError: forward takes other arguments, or ``data`` has another form than for
            ``calibrate``.
    """
    return chosen_arguments(module, next(_batches(module, data, 1), None))


def _batches(module: nn.Module, data: Any, batch_size: int) -> Iterator[Any]:
    inputs = len(required_arguments(module))
    reader = BatchReader(inputs=inputs, is_array=_is_array, convert=as_tensor)
    return reader.batches(data, batch_size)


def _is_array(data: Any) -> bool:
    return isinstance(data, (np.ndarray, torch.Tensor))


def _on_device(model: nn.Module, batch: Any) -> list[torch.Tensor]:
    """Return a batch as a list of tensors on the model's device."""
    parameter = next(model.parameters(), None)
    device = None if parameter is None else parameter.device
    parts = batch if isinstance(batch, (list, tuple)) else [batch]
    # A copy: an operation may change its input in place.
    return [torch.as_tensor(part, device=device).clone() for part in parts]


def _placeholders(graph: ModuleGraph) -> list[fx.Node]:
    return [node for node in graph.model.graph.nodes if node.op == "placeholder"]


def _arguments(graph: ModuleGraph, batch: Sequence[Any]) -> list[Any]:
    """Return a batch completed with the defaults of missing arguments."""
    defaults = [node.args[0] if node.args else None for node in _placeholders(graph)]
    return [*batch, *defaults[len(batch) :]]


def _steps(graph: ModuleGraph) -> list[ModelStep]:
    """Return each node as a step, with its call if it has one."""
    calls = {call.node: call for call in graph.calls}
    interpreter = fx.Interpreter(graph.model)
    steps = []
    for node in graph.model.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        read = tuple(inputs_of(node))
        run = partial(_outputs, interpreter, node)
        steps.append(ModelStep(inputs=read, outputs=(node,), run=run, call=calls.get(node)))
    return steps


def _outputs(interpreter: fx.Interpreter, node: fx.Node, inputs: Sequence[Any]) -> list[Any]:
    """Compute a node on given inputs."""
    values = iter(inputs)
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda _: next(values))
    return [getattr(interpreter, node.op)(node.target, args, kwargs)]


def _bytes_per_sample(graph: ModuleGraph, batch: Any) -> int:
    """Return the peak memory of one sample's tensors in both forms, in bytes."""
    one = _arguments(graph, [part[:1] for part in _on_device(graph.model, batch)])
    values: dict[Hashable, Any] = dict(zip(_placeholders(graph), one, strict=True))
    steps = _steps(graph)
    readers = count_readers(steps)
    peak = 0
    with in_inference(graph.model), torch.no_grad():
        for step in steps:
            values[step.outputs[0]] = step.run([values[node] for node in step.inputs])[0]
            peak = max(peak, sum(_elements(value) for value in values.values()))
            # Without the release, the peak would be the sum of all layers.
            for node in release(step, readers):
                values.pop(node, None)
    return 2 * BYTES_PER_ELEMENT * peak


def _elements(value: Any) -> int:
    """Return the number of elements of one or several tensors."""
    tensors = torch.utils._pytree.tree_leaves(value)
    return sum(x.numel() for x in tensors if isinstance(x, torch.Tensor))
