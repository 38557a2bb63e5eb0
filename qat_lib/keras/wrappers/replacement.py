"""Call a layer with other values in place of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras


def call_with_weights(
    layer: Any, weights: Mapping[int, Any], run: Callable[[], Any], add_loss: Callable[[Any], None]
) -> Any:
    """Return ``run()``, with other values for some weights of ``layer``.

    Args:
        layer: the layer; it stays as it is.
        weights: values by the id of their variable.
        run: calls the layer.
        add_loss: takes each loss that the call adds.
    """
    # The scope makes the layer read these values in place of its variables. It hides an enclosing
    # scope, so every variable of the layer goes in with its present value.
    mapping = [(v, weights.get(id(v), v.value)) for v in layer.variables]
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        outputs = run()
    for loss in scope.losses:  # of activity regularizers; those of weights go by the variables
        add_loss(loss)
    before = {id(v): value for v, value in mapping}
    for variable in layer.non_trainable_variables:
        after = scope.get_current_value(variable)
        if after is not None and after is not before[id(variable)]:
            variable.assign(after)
    return outputs
