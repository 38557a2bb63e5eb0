"""Plans of PyTorch modules: those of the same networks in Keras."""

from __future__ import annotations

from typing import Any

import pytest
from torch_twins import TWINS, images

import qat_lib
from qat_lib import QuantizationPlan, QuantizationSpec
from qat_lib.custom_qdq_cases import (
    BNQDQCase,
    EfficientNetQDQCase,
    MaxPoolQDQCase,
    ResidualConnectionQDQCase,
)
from qat_lib.torch import plan_quantization

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "auto": {"custom_qdq_cases": "auto"},
    "unsigned": {"custom_qdq_cases": "auto", "unsigned": True},
    "patterns": {"custom_qdq_cases": [ResidualConnectionQDQCase(), BNQDQCase(), MaxPoolQDQCase()]},
    "gates": {"custom_qdq_cases": [EfficientNetQDQCase()]},
    "partial": {
        "quantization_mode": "partial",
        "quantization_spec": QuantizationSpec().add(["stem", "head", "conv"], num_bits=6),
    },
}


def described(plan: QuantizationPlan) -> dict[str, Any]:
    """Return what a plan says, without the names of weights and classes, which differ."""
    activations, weights = {}, {}
    groups: dict[str | None, set[str]] = {}
    for entry in plan.quantizers:
        groups.setdefault(entry.group, set()).add(entry.tensor)
    for entry in plan.quantizers:
        options = (entry.num_bits, entry.unsigned, entry.calibrator, entry.range_policy)
        if entry.kind == "activation":
            readers = {(consumer.layer, consumer.input) for consumer in entry.consumers}
            tied = groups[entry.group] if entry.group else set()
            reason = set(entry.reason.split("; "))
            activations[entry.tensor] = (readers, tied, options, reason)
        else:
            weights[entry.layer] = (options, entry.reason)
    skipped = {item.layer: (item.reason, item.detail) for item in plan.skipped}
    return {"activations": activations, "weights": weights, "skipped": skipped}


@pytest.mark.filterwarnings("ignore:The spec names")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("network", TWINS)
def test_plan_is_that_of_the_keras_twin(network: str, options: str) -> None:
    make_module, make_model = TWINS[network]
    chosen = OPTIONS[options]
    plan = plan_quantization(make_module(), example_input=images(network), **chosen)
    expected = qat_lib.plan_quantization(make_model(), **chosen)
    assert described(plan) == described(expected)
    assert set(plan.wrapped) == set(expected.wrapped)
