"""Plans of PyTorch modules: those of the same networks in Keras."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch_twins import TWINS, images

import qat_lib
from qat_lib import QuantizationPlan, QuantizationSpec
from qat_lib.custom_qdq_cases import (
    BNQDQCase,
    EfficientNetQDQCase,
    MaxPoolQDQCase,
    ResidualConnectionQDQCase,
    TensorRTQDQCase,
)
from qat_lib.errors import SpecError, UnsupportedModelError
from qat_lib.torch import plan_quantization

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "auto": {"custom_qdq_cases": "auto"},
    "unsigned": {"custom_qdq_cases": "auto", "unsigned": True},
    "patterns": {"custom_qdq_cases": [ResidualConnectionQDQCase(), BNQDQCase(), MaxPoolQDQCase()]},
    "gates": {"custom_qdq_cases": [EfficientNetQDQCase()]},
    "partial": {
        "quantization_mode": "partial",
        "quantization_spec": QuantizationSpec().add(
            "(stem|head|conv).*", is_regex=True, num_bits=6
        ),
    },
}


def described(plan: QuantizationPlan) -> dict[str, Any]:
    """Return a plan without names of weights and classes.

    These differ.
    """
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


@pytest.mark.matrix_except("*-auto", "residual-*")
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


def entries_of(plan: QuantizationPlan) -> set[str]:
    return {entry.tensor for entry in plan.quantizers}


def test_spec_entries_by_class_name() -> None:
    module = TWINS["residual"][0]()
    spec = QuantizationSpec().add(
        ["Conv2d", "add", "AdaptiveAvgPool2d"],
        is_keras_class=True,
        quantize_input=[False, True, False],
        quantize_weight=[True, False, False],
    )
    plan = plan_quantization(module, quantization_spec=spec)
    sources = {entry.layer: entry.reason for entry in plan.by_kind("weight")}
    assert sources["stem"] == "spec: class Conv2d"
    assert sources["head"] == "default"
    tensors = [entry.tensor for entry in plan.by_kind("activation")]
    assert tensors == ["pool:0", "a2_bn:0", "b2_bn:0", "short_bn:0", "flatten:0"]
    assert {item.layer: item.reason for item in plan.skipped}["gap"] == "excluded"


class Own(nn.Linear):
    pass


def test_spec_entries_by_the_models_own_classes() -> None:
    module = nn.Sequential(Own(2, 2), nn.Linear(2, 2))
    for name in ("Own", "Linear"):
        spec = QuantizationSpec().add(name, is_keras_class=True, num_bits=4)
        plan = plan_quantization(module, quantization_spec=spec)
        bits = {entry.layer: entry.num_bits for entry in plan.by_kind("weight")}
        assert bits == {"0": 4, "1": 8 if name == "Own" else 4}


def test_unsupported_named_module_says_why() -> None:
    spec = QuantizationSpec().add("0")
    (skipped,) = plan_quantization(nn.Sequential(nn.LSTM(2, 2)), quantization_spec=spec).skipped
    assert (skipped.class_name, skipped.reason) == ("LSTM", "unsupported")
    assert skipped.detail.startswith("its gates are one kernel")


def test_unknown_name_is_refused() -> None:
    spec = QuantizationSpec().add("stem_relo")
    with pytest.raises(SpecError, match=r"'stem_relo' .did you mean 'stem_relu'"):
        plan_quantization(TWINS["residual"][0](), quantization_spec=spec)


def test_additions_without_example_have_one_shape() -> None:
    class Broadcasting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Linear(4, 4)
            self.right = nn.Linear(4, 1)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.left(x) + self.right(x))

    known = plan_quantization(
        Broadcasting(), custom_qdq_cases="auto", example_input=torch.zeros(2, 4)
    )
    unknown = plan_quantization(Broadcasting(), custom_qdq_cases="auto")
    assert entries_of(unknown) - entries_of(known) == {"left:0"}
    assert entries_of(known) < entries_of(unknown)


def test_float_outputs_are_found_in_a_module() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.boxes, self.scores = (nn.Conv2d(4, 4, 3) for _ in range(3))

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.stem(x))
            return {"boxes": self.boxes(x) * 2, "scores": self.scores(x).softmax(1)}

    case = TensorRTQDQCase(float_outputs=True)
    plan = plan_quantization(Heads(), custom_qdq_cases=[case])
    assert set(plan.wrapped) == {"stem", "scores"}
    (reason,) = [each.detail for each in plan.skipped if each.layer == "boxes"]
    assert "a float output layer: no activation between it and the output" in reason


def test_a_case_gets_the_traced_module() -> None:
    class Seen:
        def case(self, module: nn.Module, qspec: QuantizationSpec) -> QuantizationSpec:
            assert isinstance(module.get_submodule("stem"), nn.Conv2d)
            return qspec.add("stem", quantize_input=False, quantize_weight=False)

    plan = plan_quantization(TWINS["residual"][0](), custom_qdq_cases=[Seen()])
    assert {item.layer: item.detail for item in plan.skipped}["stem"] == "Seen: layer stem"


def test_planning_changes_nothing() -> None:
    module = TWINS["inverted"][0]().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    plan_quantization(module, custom_qdq_cases="auto", example_input=images("inverted"))
    assert all(part.training for part in module.modules())
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_plan_goes_through_json() -> None:
    plan = plan_quantization(TWINS["inception"][0](), custom_qdq_cases="auto")
    assert QuantizationPlan.from_json(plan.to_json()) == plan


def test_the_wrong_kind_of_model_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"Expected a torch.nn.Module"):
        plan_quantization(object())  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="must be 'full' or 'partial'"):
        plan_quantization(object(), "some")  # type: ignore[arg-type]
