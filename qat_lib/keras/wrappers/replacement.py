"""Call of a layer with other values for its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras


def call_with_weights(
    layer: Any, weights: Mapping[int, Any], run: Callable[[], Any], add_loss: Callable[[Any], None]
) -> Any:
    """Return the result of ``run()`` with other values for some weights of ``layer``.

    Args:
        layer: the layer; its weights do not change.
        weights: values by the id of their variable.
        run: calls the layer.
        add_loss: called with each loss added by the call.
    """
    # Within the scope, the layer reads these values instead of its variables. The scope hides an
    # enclosing scope, so it must contain the current values of all variables of the layer.
    mapping = [(v, weights.get(id(v), v.value)) for v in layer.variables]
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        outputs = run()
    for loss in scope.losses:  # from activity regularizers; weight regularizers use the variables
        add_loss(loss)
    # The scope also captured assignments, such as moving statistics: apply them.
    before = {id(v): value for v, value in mapping}
    for variable in layer.non_trainable_variables:
        after = scope.get_current_value(variable)
        if after is not None and after is not before[id(variable)]:
            variable.assign(after)
    return outputs
