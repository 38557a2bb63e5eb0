"""QuantizationPlan as data: print, compare, write, read, change, apply."""

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

from qat_lib import (
    QuantizationPlan,
    QuantizationSpec,
    QuantizerEntry,
    ResNetV2QDQCase,
    SkippedLayer,
    TensorRTQDQCase,
    apply_plan,
    calibrate,
    load_model,
    model_quantizers,
    plan_quantization,
    quantize_model,
)
from qat_lib.core.plan import Consumer, as_plan
from qat_lib.core.spec import CALIBRATORS, RANGE_POLICIES
from qat_lib.errors import PlanError


@pytest.fixture(scope="module")
def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3), name="x")
    y = layers.SeparableConv2D(4, 3, padding="same", name="sep")(x)
    y = layers.ReLU(name="relu")(layers.Conv2D(4, 3, padding="same", name="conv")(y))
    y = layers.GlobalAveragePooling2D(name="pool")(layers.Add(name="add")([y, y]))
    return keras.Model(x, layers.Dense(2, name="head")(y), name="net")


@pytest.fixture(scope="module")
def plan(model: keras.Model) -> QuantizationPlan:
    return plan_quantization(model)


def data() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)


def test_every_unquantized_layer_has_a_reason(model: keras.Model, plan: QuantizationPlan) -> None:
    decided = set(plan.wrapped) | {skipped.layer for skipped in plan.skipped}
    assert decided == {layer.name for layer in model.layers} - {"x"}
    assert {(s.layer, s.class_name, s.reason) for s in plan.skipped} == {
        ("relu", "ReLU", "range-preserving"),
        ("add", "Add", "off by default"),
    }
    assert all(s.detail for s in plan.skipped)
    assert all(entry.reason for entry in plan.quantizers)


def test_it_prints_as_a_table(plan: QuantizationPlan) -> None:
    text = str(plan)
    lines = text.splitlines()
    assert lines[0] == f"net: {len(plan.quantizers)} quantizers (full mode)"
    for entry in plan.quantizers:
        (row,) = [line for line in lines if line.startswith(f"{entry.tensor} ")]
        assert entry.name in row
        assert entry.reason in row
    assert "off by default" in text
    assert not any(line != line.rstrip() for line in lines)


def test_it_can_not_be_changed_in_place(plan: QuantizationPlan) -> None:
    with pytest.raises(FrozenInstanceError):
        plan.mode = "partial"  # type: ignore[misc]


def test_it_round_trips_through_json(plan: QuantizationPlan) -> None:
    back = QuantizationPlan.from_json(plan.to_json())
    assert back == plan
    assert back.digest() == plan.digest()
    assert QuantizationPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=8)
ENTRIES = st.builds(
    QuantizerEntry,
    name=TEXT,
    kind=st.sampled_from(["activation", "weight", "internal"]),
    tensor=TEXT,
    consumers=st.lists(st.builds(Consumer, layer=TEXT, input=st.integers(0, 9)), max_size=2).map(
        tuple
    ),
    channel_axes=st.none() | st.lists(st.integers(-4, 4), min_size=1, max_size=2).map(tuple),
    group=st.none() | TEXT,
    num_bits=st.integers(2, 16),
    calibrator=st.none() | st.sampled_from(CALIBRATORS),
    range_policy=st.sampled_from(RANGE_POLICIES),
    reason=TEXT,
)
SKIPPED = st.builds(SkippedLayer, layer=TEXT, class_name=TEXT, reason=TEXT, detail=TEXT)


@settings(max_examples=50, deadline=None)
@given(
    plan=st.builds(
        QuantizationPlan,
        model=TEXT,
        mode=TEXT,
        quantizers=st.lists(ENTRIES, max_size=3).map(tuple),
        skipped=st.lists(SKIPPED, max_size=2).map(tuple),
        wrapped=st.lists(TEXT, max_size=3).map(tuple),
    )
)
def test_every_plan_round_trips(plan: QuantizationPlan) -> None:
    assert QuantizationPlan.from_json(plan.to_json()) == plan
    assert plan.diff(plan) == []


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{",
            "[]",
            "null",
            "3",
            '"plan"',
            "{}",
            '{"version": 2}',
            '{"version": 1, "model": "m"}',
        ),
        '{"version": 1, "model": "m", "mode": "full", "quantizers": [3], "skipped": []}',
        '{"version": 1, "model": "m", "mode": "full", "quantizers": {"a": 1}, "skipped": []}',
        '{"version": 1, "model": "m", "mode": "full", "quantizers": [], "skipped": [], "wraped": []}',
        '{"version": 1, "model": "m", "mode": "full", "skipped": [], "quantizers": '
        '[{"name": "q", "kind": "weight", "tensor": "conv/kernel", "width": 4}]}',
        '{"version": 1, "model": "m", "mode": "full", "skipped": [], "quantizers": '
        '[{"name": "q", "kind": "weight", "tensor": "conv/kernel", "num_bits": 17}]}',
    ],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"plan|expected num_bits from 2 to 16"):
        QuantizationPlan.from_json(text)


def test_the_difference_of_two_plans(model: keras.Model, plan: QuantizationPlan) -> None:
    assert plan.diff(plan) == []
    spec = QuantizationSpec().add("conv", num_bits=4).add("head", quantize_input=False).add("add")
    lines = plan.diff(plan_quantization(model, quantization_spec=spec))
    assert any(line.startswith("~ conv_kernel_quantizer: num_bits: 8 -> 4") for line in lines)
    assert any(line.startswith("- pool_quantizer:") for line in lines)
    assert any(line.startswith(("+ conv_quantizer:", "+ relu_quantizer:")) for line in lines)


def test_plan_can_be_read_back_and_applied(model: keras.Model, plan: QuantizationPlan) -> None:
    direct, read = (
        quantize_model(model),
        apply_plan(model, QuantizationPlan.from_json(plan.to_json())),
    )
    np.testing.assert_array_equal(direct(data()), read(data()))


def test_an_entry_can_be_taken_out(
    model: keras.Model, plan: QuantizationPlan, tmp_path: Path
) -> None:
    """One of each kind: activation, weight, inner tensor.

    The latter is inside of a separable convolution.
    """
    full = quantize_model(model)
    for name in (
        "pool_quantizer",
        "conv_kernel_quantizer",
        "sep_pointwise_kernel_quantizer",
        "sep_depthwise_quantizer",
    ):
        smaller = apply_plan(model, plan.without(name))
        active = {n for n, q in model_quantizers(smaller).items() if q.enabled}
        assert active == set(model_quantizers(full)) - {name}
        smaller.save(tmp_path / "model.keras")
        np.testing.assert_array_equal(load_model(tmp_path / "model.keras")(data()), smaller(data()))
    with pytest.raises(PlanError, match="no quantizer 'nothing'"):
        plan.without("nothing")


def test_plan_without_any_entry_gives_original(model: keras.Model, plan: QuantizationPlan) -> None:
    empty = plan.without(*(entry.name for entry in plan.quantizers))
    np.testing.assert_array_equal(apply_plan(model, empty)(data()), model(data()))


def test_an_entry_can_be_changed(model: keras.Model, plan: QuantizationPlan) -> None:
    """Weights of one layer keep options of their own."""
    changes: dict[str, dict[str, Any]] = {
        "sep_depthwise_kernel_quantizer": {"num_bits": 4},
        "sep_pointwise_kernel_quantizer": {"channel_axes": None},
        "pool_quantizer": {"range_policy": "learned", "calibrator": "mse"},
    }
    edited = replace(
        plan, quantizers=tuple(replace(e, **changes.get(e.name, {})) for e in plan.quantizers)
    )
    found = model_quantizers(apply_plan(model, edited))
    for entry in edited.quantizers:
        quantizer = found[entry.name]
        assert quantizer.num_bits == entry.num_bits, entry.name
        assert quantizer.channel_axes == entry.channel_axes, entry.name
        assert quantizer.range_policy == entry.range_policy, entry.name


def test_the_range_policy_of_all_activations(plan: QuantizationPlan, model: keras.Model) -> None:
    spec = QuantizationSpec().add("head", range_policy="frozen")
    changed = plan_quantization(model, quantization_spec=spec).with_range_policy("learned")
    policies = {entry.name: entry.range_policy for entry in changed.quantizers}
    assert policies["x_quantizer"] == policies["sep_depthwise_quantizer"] == "learned"
    assert policies["pool_quantizer"] == "frozen"
    assert policies["conv_kernel_quantizer"] == "current"


def edited(plan: QuantizationPlan, name: str, **changes: Any) -> QuantizationPlan:
    return replace(
        plan,
        quantizers=tuple(replace(e, **changes) if e.name == name else e for e in plan.quantizers),
    )


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("x_quantizer", {"tensor": "y:0"}, "tensor 'y:0'"),
        ("x_quantizer", {"consumers": (Consumer(layer="sep", input=1),)}, "no such input"),
        ("x_quantizer", {"consumers": (Consumer(layer="nothing", input=0),)}, "no such input"),
        ("x_quantizer", {"consumers": (Consumer(layer="head", input=0),)}, "another tensor"),
        ("conv_kernel_quantizer", {"tensor": "konv/kernel"}, "layer 'konv'"),
        ("conv_kernel_quantizer", {"tensor": "conv/bias"}, "no weight 'bias'.*It has: kernel"),
        ("conv_kernel_quantizer", {"tensor": "relu/kernel"}, "no weight 'kernel'.*It has: none"),
        ("x_quantizer", {"num_bits": 99}, "from 2 to 16"),
        ("x_quantizer", {"range_policy": "never"}, "range_policy"),
        ("x_quantizer", {"kind": "bias"}, "kind"),
    ],
)
def test_misfitting_plan_is_refused(
    model: keras.Model, plan: QuantizationPlan, name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((PlanError, ValueError), match=message):
        apply_plan(model, edited(plan, name, **changes))


def test_plan_wrapping_unwrappable_layer_is_refused(
    model: keras.Model, plan: QuantizationPlan
) -> None:
    with pytest.raises(PlanError, match="'nothing'"):
        apply_plan(model, replace(plan, wrapped=(*plan.wrapped, "nothing")))
    x = keras.Input((4,))
    other = keras.Model(x, layers.LayerNormalization(name="norm")(layers.PReLU(name="prelu")(x)))
    empty = QuantizationPlan(model="m", mode="full", quantizers=(), skipped=(), wrapped=("prelu",))
    with pytest.raises(PlanError, match="no wrapper supports PReLU"):
        apply_plan(other, empty)


def test_names_join_plan_model_and_calibration(model: keras.Model, plan: QuantizationPlan) -> None:
    quantized = apply_plan(model, plan)
    report = calibrate(quantized, data())
    activations = {entry.name for entry in plan.quantizers if entry.kind != "weight"}
    assert set(report.tensors) == activations
    assert set(model_quantizers(quantized)) == {entry.name for entry in plan.quantizers}


class Counting:
    """Counts how often the graph of layers is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from qat_lib.keras.graph.layer_graph import LayerGraph

        self.count = 0
        for name in ("producer", "consumers"):
            original = getattr(LayerGraph, name)

            def counted(graph: Any, tensor: str, original: Any = original) -> Any:
                self.count += 1
                return original(graph, tensor)

            monkeypatch.setattr(LayerGraph, name, counted)


def deep(blocks: int) -> keras.Model:
    x = y = keras.Input((4, 4, 2))
    for _ in range(blocks):
        z = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(2, 1)(y)))
        y = layers.Add()([y, layers.MaxPooling2D(1)(z)])
    return keras.Model(x, y)


def gates(blocks: int) -> keras.Model:
    """Each placement depends on the next; none is made.

    The last reader is not quantized.
    """
    x = y = keras.Input((4, 4, 2))
    for _ in range(blocks):
        y = layers.Multiply()([y, layers.AveragePooling2D(1)(y)])
    return keras.Model(x, layers.Softmax()(y))


@pytest.mark.matrix_except("gates-TensorRTQDQCase")
@pytest.mark.parametrize(
    ("make", "case"), [(deep, ResNetV2QDQCase), (deep, TensorRTQDQCase), (gates, TensorRTQDQCase)]
)
def test_the_work_of_planning_grows_linearly(
    make: Any, case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, work = Counting(monkeypatch), []
    for blocks in (8, 16, 32):
        counting.count = 0
        plan_quantization(make(blocks), custom_qdq_cases=[case()])
        work.append(counting.count)
    assert work[2] - work[1] <= 2.2 * (work[1] - work[0])


def test_save_and_load(model: keras.Model, tmp_path: Path) -> None:
    plan = plan_quantization(model)
    plan.save(str(tmp_path / "plan.json"))
    assert QuantizationPlan.load(str(tmp_path / "plan.json")) == plan


def test_as_plan_takes_each_form(plan: QuantizationPlan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    for form in (plan, plan.to_dict(), path, str(path)):
        assert as_plan(form) == plan
    with pytest.raises(PlanError, match="Received: int"):
        as_plan(3)  # type: ignore[arg-type]
