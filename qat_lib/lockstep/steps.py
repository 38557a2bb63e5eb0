"""run_steps: compute both forms of a model step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from qat_lib.calibrators.collecting import collecting


@dataclass(frozen=True, kw_only=True)
class BothForms:
    """One tensor in both forms of the model, as lists of batches.

    Attributes:
        float: result with all quantizers passing their inputs through.
        quantized: result of the quantized model, computed from quantized tensors.
    """

    float: Sequence[Any]
    quantized: Sequence[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelStep:
    """One computation of a model.

    Attributes:
        inputs: input tensors, in the order of the argument of ``run``.
        outputs: output tensors.
        run: computes the outputs of one batch from the inputs.
        call: call of the model's graph; None for a helper, such as a constant.
        without_activation: context that removes the layer's own activation and yields it; yields
            None if the layer has none.
    """

    inputs: tuple[Hashable, ...]
    outputs: tuple[Hashable, ...]
    run: Callable[[Sequence[Any]], Sequence[Any]]
    call: Any = None
    without_activation: Callable[[], AbstractContextManager[Any]] = nullcontext


Form: TypeAlias = Literal["both", "float", "quantized"]
"""What to compute of a model. With one form only, its tensors stand for both."""
Visit = Callable[[Any, tuple[BothForms, ...]], tuple[BothForms, ...] | None]
"""Called with each call and its outputs; returns replacements of the outputs for their readers, or
None."""
Prepare = Callable[[Any, Sequence[BothForms], Sequence[Sequence[Any]]], None]
"""Called before the quantized form of each call, with the call, its inputs and its float outputs by
batch. It may change the weights of the call."""


class _PassOn:
    """A collector that records nothing: quantizers pass their inputs through."""

    def observe(self, quantizer: Any, tensor: Any) -> None:
        """Do nothing."""


def run_steps(
    steps: Sequence[ModelStep],
    given: Mapping[Hashable, BothForms],
    visit: Visit,
    *,
    form: Form = "both",
    prepare: Prepare | None = None,
    keep: Sequence[Hashable] = (),
) -> list[BothForms]:
    """Compute each step in both forms before the next.

    ``visit`` can therefore change a layer based on its errors, and later steps use the changed
    outputs. A tensor is released after its last reader. For a layer with its own activation,
    ``visit`` receives the outputs before the activation.

    Args:
        steps: the steps of a quantized model, in topological order.
        given: the inputs of the model.
        visit: called after each step that is a call.
        form: the forms to compute. Default: both.
        prepare: called before each call is computed in its quantized form. Default None.
        keep: tensors to return. Default: none.
    """
    readers = count_readers(steps)
    # An additional reader of these tensors, so that they are never released.
    readers.update(keep)
    pairs = dict(given)
    count = len(next(iter(pairs.values())).float)
    for step in steps:
        # Both forms run without the activation; visited outputs go through it afterwards.
        with step.without_activation() as activation:
            inputs = [pairs[tensor] for tensor in step.inputs]
            in_float = _compute_float(step, inputs, count) if form != "quantized" else []
            if prepare is not None and step.call is not None:
                prepare(step.call, inputs, in_float)
            in_integers = _compute_quantized(step, inputs, count) if form != "float" else in_float
            outputs = _paired(step, in_float or in_integers, in_integers)
        if step.call is not None:
            outputs = visit(step.call, outputs) or outputs
        if activation is not None:
            outputs = tuple(_activated(pair, activation) for pair in outputs)
        # After the visit: later steps read the replaced outputs.
        pairs.update(zip(step.outputs, outputs, strict=True))
        for tensor in release(step, readers):
            pairs.pop(tensor, None)
    return [pairs[tensor] for tensor in keep]


def count_readers(steps: Sequence[ModelStep]) -> Counter[Hashable]:
    """Return how often each tensor is read."""
    readers: Counter[Hashable] = Counter()
    for step in steps:
        readers.update(step.inputs)
    return readers


def release(step: ModelStep, readers: Counter[Hashable]) -> list[Hashable]:
    """Count a step's inputs as read; return the tensors without a later reader."""
    readers.subtract(step.inputs)
    return [tensor for tensor in {*step.inputs, *step.outputs} if readers[tensor] == 0]


def _activated(pair: BothForms, activation: Callable[[Any], Any]) -> BothForms:
    floats = integers = [activation(x) for x in pair.float]
    if pair.quantized is not pair.float:
        integers = [activation(x) for x in pair.quantized]
    return BothForms(float=floats, quantized=integers)


def _compute_float(step: ModelStep, inputs: Sequence[BothForms], count: int) -> list[Sequence[Any]]:
    """Return the float outputs of a step, over all batches."""
    found = []
    for batch in range(count):
        with collecting(_PassOn()):
            found.append(step.run([pair.float[batch] for pair in inputs]))
    return found


def _compute_quantized(
    step: ModelStep, inputs: Sequence[BothForms], count: int
) -> list[Sequence[Any]]:
    """Return the quantized outputs of a step, over all batches."""
    return [step.run([pair.quantized[batch] for pair in inputs]) for batch in range(count)]


def _paired(
    step: ModelStep, in_float: list[Sequence[Any]], in_integers: list[Sequence[Any]]
) -> tuple[BothForms, ...]:
    """Return each output of a step in both forms, over all batches."""
    pairs = []
    for index in range(len(step.outputs)):
        floats = [outputs[index] for outputs in in_float]
        # One list stands for both forms where only one was computed; see ``_activated``.
        integers = floats
        if in_integers is not in_float:
            integers = [outputs[index] for outputs in in_integers]
        pairs.append(BothForms(float=floats, quantized=integers))
    return tuple(pairs)
