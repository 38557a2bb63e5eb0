"""run_steps: compute both forms of a model, one step after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from qat_lib.calibrators.collecting import collecting


@dataclass(frozen=True, kw_only=True)
class BothForms:
    """One tensor in both forms of the model, as batch lists.

    Attributes:
        float: as the model computes it with every quantizer passing its input on.
        quantized: as the quantized model computes it, from quantized tensors in front.
    """

    float: Sequence[Any]
    quantized: Sequence[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelStep:
    """One computation of a model.

    Attributes:
        inputs: what it reads, in the order that ``run`` takes it.
        outputs: what it makes.
        run: computes the outputs of one batch from the inputs.
        call: the call of the model's graph that it is; None for a helper, such as a constant.
        without_activation: takes the layer's own activation off within a block, and yields it;
            None where the layer has none.
    """

    inputs: tuple[Hashable, ...]
    outputs: tuple[Hashable, ...]
    run: Callable[[Sequence[Any]], Sequence[Any]]
    call: Any = None
    without_activation: Callable[[], AbstractContextManager[Any]] = nullcontext


Visit = Callable[[Any, tuple[BothForms, ...]], tuple[BothForms, ...] | None]
"""Told of each call and its outputs; gives other outputs for what reads them, or None."""
Prepare = Callable[[Any, Sequence[BothForms], Sequence[Sequence[Any]]], None]
"""Told of each call before it runs in its quantized form, of its inputs and of its float outputs,
by batch. It may change the weights of the call."""


class _PassOn:
    """A collector that takes no note: quantizers pass their inputs on."""

    def observe(self, quantizer: Any, tensor: Any) -> None:
        """Do nothing."""


def run_steps(
    steps: Sequence[ModelStep],
    given: Mapping[Hashable, BothForms],
    visit: Visit,
    *,
    quantized: bool = True,
    prepare: Prepare | None = None,
    keep: Sequence[Hashable] = (),
) -> list[BothForms]:
    """Compute each step in float and quantized, before the next.

    So ``visit`` can change a layer from the errors that it causes, and what follows sees the
    change. A tensor is kept for as long as a step still reads it. Of a layer with an activation of
    its own ``visit`` sees the outputs in front of it.

    Args:
        steps: the steps of a quantized model, each after those that make what it reads.
        given: the inputs of the model.
        visit: called after each step that is a call.
        quantized: whether to compute the quantized form. Default True; a float model has none, and
            its one form stands for both.
        prepare: called before each call is computed in its quantized form. Default None.
        keep: tensors to return. Default: none.
    """
    readers = count_readers(steps)
    readers.update(keep)
    pairs = dict(given)
    count = len(next(iter(pairs.values())).float)
    for step in steps:
        with step.without_activation() as activation:
            inputs = [pairs[tensor] for tensor in step.inputs]
            in_float = _compute_float(step, inputs, count)
            if prepare is not None and step.call is not None:
                prepare(step.call, inputs, in_float)
            outputs = _compute(step, inputs, in_float, quantized=quantized)
        if step.call is not None:
            outputs = visit(step.call, outputs) or outputs
        if activation is not None:
            outputs = tuple(_activated(pair, activation) for pair in outputs)
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
    """Count a step's inputs as read; return what no later step reads."""
    readers.subtract(step.inputs)
    return [tensor for tensor in {*step.inputs, *step.outputs} if readers[tensor] == 0]


def _activated(pair: BothForms, activation: Callable[[Any], Any]) -> BothForms:
    return BothForms(
        float=[activation(x) for x in pair.float],
        quantized=[activation(x) for x in pair.quantized],
    )


def _compute_float(step: ModelStep, inputs: Sequence[BothForms], count: int) -> list[Sequence[Any]]:
    """Return the float outputs of a step, over all batches."""
    found = []
    for batch in range(count):
        with collecting(_PassOn()):
            found.append(step.run([pair.float[batch] for pair in inputs]))
    return found


def _compute(
    step: ModelStep, inputs: Sequence[BothForms], in_float: list[Sequence[Any]], *, quantized: bool
) -> tuple[BothForms, ...]:
    """Return the outputs of a step in both forms, over all batches."""
    in_integers = in_float
    if quantized:
        in_integers = []
        for batch in range(len(in_float)):
            in_integers.append(step.run([pair.quantized[batch] for pair in inputs]))
    pairs = []
    for index in range(len(step.outputs)):
        pairs.append(
            BothForms(
                float=[outputs[index] for outputs in in_float],
                quantized=[outputs[index] for outputs in in_integers],
            )
        )
    return tuple(pairs)
