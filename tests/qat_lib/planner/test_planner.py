"""Which tensors and weights get a quantizer: precedence, modes, indices, sharing, errors."""

import copy
import re
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from qat_lib import (
    CustomQDQInsertionCase,
    QuantizationPlan,
    QuantizationSpec,
    ResNetV1QDQCase,
    TensorQuantizer,
    TensorRTQDQCase,
    apply_plan,
    model_quantizers,
    plan_quantization,
    quantize_model,
)
from qat_lib.errors import PlanError, SpecError


class Case(CustomQDQInsertionCase):
    """Returns what it is given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def case(self, keras_model: Any, qspec: QuantizationSpec) -> Any:
        return self.answer(keras_model, qspec) if callable(self.answer) else self.answer


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """Two convolutions, an Add of both, a pool and a head."""
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3), name="x")
    a = layers.Conv2D(4, 3, padding="same", name="conv_a")(x)
    b = layers.Conv2D(4, 3, padding="same", name="conv_b")(a)
    y = layers.GlobalAveragePooling2D(name="pool")(layers.Add(name="add")([b, a]))
    return keras.Model(x, layers.Dense(2, name="head")(y), name="net")


def reads(plan: QuantizationPlan) -> set[tuple[str, int]]:
    """Return every (layer, input) that reads a quantized tensor."""
    return {(c.layer, c.input) for entry in plan.quantizers for c in entry.consumers}


def weights(plan: QuantizationPlan) -> set[str]:
    return {entry.tensor for entry in plan.by_kind("weight")}


def test_layers_off_by_default_have_a_cause() -> None:
    x = keras.Input((8, 8, 3))
    y = keras.layers.Conv2DTranspose(4, 2, strides=2, name="up")(x)
    gate = keras.layers.GlobalAveragePooling2D(keepdims=True)(y)
    y = keras.layers.Add(name="broadcast")([keras.layers.Conv2D(4, 1)(y), gate])
    plan = plan_quantization(keras.Model(x, keras.layers.Conv2D(2, 1)(y)), custom_qdq_cases="auto")
    details = {skipped.layer: skipped.detail for skipped in plan.skipped}
    assert details["up"].startswith("TensorRT has few INT8 kernels of transposed convolutions")
    assert details["broadcast"].startswith("it broadcasts an operand")
    assert all("name it in a spec" in details[layer] for layer in ("up", "broadcast"))


@pytest.mark.parametrize(
    ("options", "cpu", "why"),
    [
        ({}, "vnni", ""),
        ({"kernel_size": 4}, "vnni", ""),
        ({"strides": 1}, "vnni", ""),
        ({"kernel_size": 5}, "vnni", "INT8 kernels of groups, windows above 4"),
        ({"strides": 3}, "vnni", "INT8 kernels of groups, windows above 4"),
        ({"strides": 1, "dilation_rate": 2}, "vnni", "INT8 kernels of groups, windows above 4"),
        ({}, "avx2", "avx2 CPUs compute most transposed convolutions faster in float"),
        ({}, "arm", "arm CPUs compute most transposed convolutions faster in float"),
    ],
)
def test_transposed_convolutions_by_cpu(options: dict[str, Any], cpu: Any, why: str) -> None:
    x = keras.Input((8, 8, 3))
    given = {"kernel_size": 2, "strides": 2, **options}
    up = keras.layers.Conv2DTranspose(4, name="up", **given)
    plan = plan_quantization(keras.Model(x, up(x)), cpu=cpu)
    details = {skipped.layer: skipped.detail for skipped in plan.skipped}
    assert details.get("up", "").startswith(why)
    assert ("up/kernel" in weights(plan)) == (not why)
    assert (("up", 0) in reads(plan)) == (not why)


def reasons(plan: QuantizationPlan) -> dict[str, str]:
    return {skipped.layer: skipped.reason for skipped in plan.skipped}


def test_the_default_table(model: keras.Model) -> None:
    plan = plan_quantization(model)
    assert reads(plan) == {("conv_a", 0), ("conv_b", 0), ("pool", 0), ("head", 0)}
    assert weights(plan) == {"conv_a/kernel", "conv_b/kernel", "head/kernel"}
    assert reasons(plan) == {"add": "off by default"}


def test_partial_mode_takes_only_what_is_named(model: keras.Model) -> None:
    spec = QuantizationSpec().add("conv_b").add("Dense", is_keras_class=True)
    plan = plan_quantization(model, "partial", spec)
    assert reads(plan) == {("conv_b", 0), ("head", 0)}
    assert weights(plan) == {"conv_b/kernel", "head/kernel"}
    assert reasons(plan) == {"conv_a": "not named", "add": "not named", "pool": "not named"}


def test_partial_mode_with_a_case_alone(model: keras.Model) -> None:
    plan = plan_quantization(model, "partial", None, [Case(QuantizationSpec().add("head"))])
    assert reads(plan) == {("head", 0)}


@pytest.mark.parametrize("spec", [None, QuantizationSpec()])
def test_partial_mode_with_nothing_is_refused(
    model: keras.Model, spec: QuantizationSpec | None
) -> None:
    with pytest.raises(SpecError, match="give at least one"):
        quantize_model(model, "partial", spec)


def test_precedence_name_pattern_class_default(model: keras.Model) -> None:
    spec = (
        QuantizationSpec()
        .add("conv_b", num_bits=4)
        .add(r"conv_.*", is_regex=True, num_bits=5)
        .add("Conv2D", is_keras_class=True, num_bits=6)
        .add("Dense", is_keras_class=True, num_bits=7)
    )
    bits = {
        e.tensor: e.num_bits
        for e in plan_quantization(model, quantization_spec=spec).by_kind("weight")
    }
    assert bits == {"conv_a/kernel": 5, "conv_b/kernel": 4, "head/kernel": 7}


def test_weights_may_be_narrower_than_activations(model: keras.Model) -> None:
    spec = QuantizationSpec().add("conv_a", weight_num_bits=4).add("conv_b", num_bits=6)
    plan = plan_quantization(model, quantization_spec=spec)
    bits = {entry.tensor: entry.num_bits for entry in plan.quantizers}
    assert (bits["conv_a/kernel"], bits["conv_b/kernel"], bits["head/kernel"]) == (4, 6, 8)
    inputs = {entry.num_bits for entry in plan.by_kind("activation") if "conv_a" in str(entry)}
    assert 4 not in inputs


def test_the_last_of_equal_entries_wins(model: keras.Model) -> None:
    for options in ({}, {"is_regex": True}, {"is_keras_class": True}):
        name = "Dense" if "is_keras_class" in options else "head"
        spec = QuantizationSpec().add(name, num_bits=4, **options).add(name, num_bits=5, **options)
        plan = plan_quantization(model, "partial", spec)
        assert {e.num_bits for e in plan.quantizers} == {5}


def test_precedence_user_later_case_earlier_case(model: keras.Model) -> None:
    cases = [
        Case(
            QuantizationSpec()
            .add("head", num_bits=4)
            .add("conv_a", num_bits=4)
            .add("conv_b", num_bits=4)
        ),
        Case(QuantizationSpec().add("head", num_bits=5).add("conv_a", num_bits=5)),
    ]
    spec = QuantizationSpec().add("Dense", is_keras_class=True, num_bits=6)
    bits = {
        e.tensor: e.num_bits
        for e in plan_quantization(model, "full", spec, cases).by_kind("weight")
    }
    assert bits == {"head/kernel": 6, "conv_a/kernel": 5, "conv_b/kernel": 4}


@pytest.mark.parametrize("named", [{"name": "conv_b"}, {"name": "conv_b", "is_regex": True}])
def test_both_false_leaves_a_layer_alone(model: keras.Model, named: dict[str, Any]) -> None:
    spec = QuantizationSpec().add(**named, quantize_input=False, quantize_weight=False)
    plan = plan_quantization(model, quantization_spec=spec)
    assert ("conv_b", 0) not in reads(plan)
    assert "conv_b/kernel" not in weights(plan)
    assert reasons(plan)["conv_b"] == "excluded"
    names = [layer.name for layer in quantize_model(model, quantization_spec=spec).layers]
    assert "conv_b" in names
    assert "quant_conv_b" not in names


def test_inputs_or_weights_alone(model: keras.Model) -> None:
    spec = (
        QuantizationSpec().add("conv_a", quantize_weight=False).add("conv_b", quantize_input=False)
    )
    plan = plan_quantization(model, quantization_spec=spec)
    assert ("conv_a", 0) in reads(plan)
    assert ("conv_b", 0) not in reads(plan)
    assert weights(plan) == {"conv_b/kernel", "head/kernel"}


def test_weights_of_layer_without_any_are_ignored(model: keras.Model) -> None:
    spec = QuantizationSpec().add("add", quantize_input=False, quantize_weight=True)
    assert reasons(plan_quantization(model, quantization_spec=spec))["add"] == "excluded"


def test_quantization_index_chooses_inputs(model: keras.Model) -> None:
    for index, expected in ((None, {0, 1}), (0, {0}), ([1], {1}), ([0, 1], {0, 1})):
        spec = QuantizationSpec().add("add", quantization_index=index)
        plan = plan_quantization(model, quantization_spec=spec)
        assert {i for layer, i in reads(plan) if layer == "add"} == expected


@pytest.mark.parametrize("index", [2, [0, 7]])
def test_an_index_out_of_range_is_refused(model: keras.Model, index: Any) -> None:
    with pytest.raises(SpecError, match=r"'add' is out of range: it has 2 input\(s\)"):
        quantize_model(
            model, quantization_spec=QuantizationSpec().add("add", quantization_index=index)
        )


def test_all_readers_of_tensor_share_one_quantizer(model: keras.Model) -> None:
    plan = plan_quantization(
        model, quantization_spec=QuantizationSpec().add("add", quantization_index=1)
    )
    (entry,) = [e for e in plan.quantizers if e.tensor == "conv_a:0"]
    assert {(c.layer, c.input) for c in entry.consumers} == {("conv_b", 0), ("add", 1)}
    assert entry.name == "conv_a_quantizer"


def test_readers_of_different_widths_are_refused(model: keras.Model) -> None:
    spec = QuantizationSpec().add("add", num_bits=4).add("conv_b", num_bits=8)
    with pytest.raises(SpecError, match="different values of num_bits"):
        plan_quantization(model, quantization_spec=spec)


def test_unknown_class_is_refused_with_nearest(model: keras.Model) -> None:
    with pytest.raises(SpecError, match=r"'Conv2d'.*Did you mean Conv2D"):
        quantize_model(
            model, quantization_spec=QuantizationSpec().add("Conv2d", is_keras_class=True)
        )
    with pytest.raises(SpecError, match=r"'LSTM'.*LSTMQuantizeWrapper"):
        quantize_model(model, quantization_spec=QuantizationSpec().add("LSTM", is_keras_class=True))


def test_aliases_and_subclasses_are_names_of_class(model: keras.Model) -> None:
    plan = plan_quantization(
        model, "partial", QuantizationSpec().add("Convolution2D", is_keras_class=True)
    )
    assert weights(plan) == {"conv_a/kernel", "conv_b/kernel"}

    class Scaled(layers.Conv2D):
        pass

    x = keras.Input((8, 8, 3))
    mine = keras.Model(x, Scaled(2, 3, name="mine")(x))
    assert weights(
        plan_quantization(mine, "partial", QuantizationSpec().add("Conv2D", is_keras_class=True))
    ) == {"mine/kernel"}


@pytest.mark.parametrize(
    ("name", "regex"), [("conv_aa", False), ("head_", False), (r"convolution_\d", True)]
)
def test_unknown_name_is_refused(model: keras.Model, name: str, regex: bool) -> None:
    spec = QuantizationSpec().add("add").add(name, is_regex=regex)
    hint = "" if regex else rf" \(did you mean '{name[:4]}"
    with pytest.raises(SpecError, match=re.escape(repr(name)) + hint):
        plan_quantization(model, quantization_spec=spec)


def test_known_names_are_accepted(model: keras.Model) -> None:
    spec = (
        QuantizationSpec()
        .add("add")
        .add(r"conv_\w", is_regex=True)
        .add("Conv1D", is_keras_class=True)
    )
    plan_quantization(model, quantization_spec=spec)


@pytest.mark.parametrize("answer", [None, [], "spec", {"name": "head"}])
def test_case_that_returns_no_spec_is_refused(model: keras.Model, answer: Any) -> None:
    with pytest.raises(
        SpecError,
        match=r"Case\.case must return a QuantizationSpec.*Received: (NoneType|list|str|dict)",
    ):
        quantize_model(model, custom_qdq_cases=[Case(answer)])


def test_plan_quantization_auto_cases(model: keras.Model) -> None:
    plan = plan_quantization(model, custom_qdq_cases="auto")
    assert plan == plan_quantization(model, custom_qdq_cases=[TensorRTQDQCase()])
    assert plan != plan_quantization(model)
    with pytest.raises(SpecError, match=r"must be a list of cases\. Received: str"):
        plan_quantization(model, custom_qdq_cases="all")  # type: ignore[arg-type]


def test_quantize_model_auto_cases(model: keras.Model) -> None:
    quantized = quantize_model(model, custom_qdq_cases="auto")
    assert "quant_add" in {layer.name for layer in quantized.layers}
    assert "quant_add" not in {layer.name for layer in quantize_model(model).layers}


def test_cases_must_be_a_list_of_objects(model: keras.Model) -> None:
    with pytest.raises(SpecError, match=r"must be a list of cases. Received: ResNetV1QDQCase"):
        quantize_model(model, custom_qdq_cases=ResNetV1QDQCase())  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"give ResNetV1QDQCase\(\) in place of ResNetV1QDQCase"):
        quantize_model(model, custom_qdq_cases=[ResNetV1QDQCase])


def test_what_is_no_case_is_refused(model: keras.Model) -> None:
    with pytest.raises(SpecError, match="needs a method case"):
        quantize_model(model, custom_qdq_cases=["ResNetV1QDQCase"])
    with pytest.raises(SpecError, match="needs a method case"):
        quantize_model(model, custom_qdq_cases=[object()])


@pytest.mark.parametrize("mode", ["Full", "", None, 1])
def test_an_unknown_mode_is_refused(model: keras.Model, mode: Any) -> None:
    with pytest.raises(SpecError, match="'full' or 'partial'"):
        quantize_model(model, mode)


def test_a_spec_of_another_type_is_refused(model: keras.Model) -> None:
    with pytest.raises(SpecError, match=r"must be a QuantizationSpec\. Received: list"):
        quantize_model(model, quantization_spec=[{"name": "head"}])


def test_nothing_given_is_changed(model: keras.Model) -> None:
    spec = QuantizationSpec().add("add", quantization_index=1)

    def meddle(keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        qspec.add("head", quantize_input=False, quantize_weight=False)
        return qspec

    case = Case(meddle)
    cases = [case]
    before_spec, before_config = copy.deepcopy(spec), model.get_config()
    before_weights = [w.copy() for w in model.get_weights()]
    before_layers = [id(layer) for layer in model.layers]
    quantized = quantize_model(model, "full", spec, cases)
    quantized.compile("sgd", "mse")
    quantized.fit(np.ones((2, 8, 8, 3)), np.zeros((2, 2)), verbose=0)
    assert spec == before_spec
    assert cases == [case]
    assert vars(case) == {"answer": meddle}
    assert model.get_config() == before_config
    assert [id(layer) for layer in model.layers] == before_layers
    for a, b in zip(before_weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_call_that_fails_leaves_nothing_behind(model: keras.Model) -> None:
    before = plan_quantization(model).to_json()
    for broken in (
        {"quantization_spec": QuantizationSpec().add("LSTM", is_keras_class=True)},
        {"custom_qdq_cases": [Case(None)]},
        {"quantization_spec": QuantizationSpec().add("add", quantization_index=9)},
    ):
        with pytest.raises(SpecError):
            quantize_model(model, **broken)
        assert plan_quantization(model).to_json() == before
        assert len(model_quantizers(quantize_model(model))) == 7


def test_an_exception_in_a_case_comes_through(model: keras.Model) -> None:
    def fail(keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        quantize_model(model, custom_qdq_cases=[Case(fail)])


def test_options_reach_the_quantizers(model: keras.Model) -> None:
    spec = QuantizationSpec().add(
        "conv_b", num_bits=4, per_channel=False, calibrator="mse", range_policy="learned"
    )
    found = model_quantizers(quantize_model(model, quantization_spec=spec))
    activation, kernel = found["conv_a_quantizer"], found["conv_b_kernel_quantizer"]
    assert (activation.num_bits, activation.calibrator, activation.range_policy) == (
        4,
        "mse",
        "learned",
    )
    assert (kernel.num_bits, kernel.channel_axes, kernel.range_policy) == (4, None, "current")
    assert found["head_kernel_quantizer"].channel_axes == (-1,)


def test_the_plan_is_pure_and_repeats_itself(model: keras.Model) -> None:
    assert plan_quantization(model).digest() == plan_quantization(model).digest()


def test_a_concatenate_ties_its_inputs() -> None:
    x = keras.Input((8, 8, 3))
    a, b = layers.Conv2D(4, 1, name="a")(x), layers.Conv2D(4, 1, name="b")(x)
    joined = layers.Concatenate(name="cat")([a, b])
    model = keras.Model(x, layers.Conv2D(2, 1, name="last")(joined))
    plan = plan_quantization(model, quantization_spec=QuantizationSpec().add("cat"))
    tied = [e for e in plan.quantizers if e.tensor in ("a:0", "b:0", "cat:0")]
    assert len({e.name for e in tied}) == 1
    assert all(e.group for e in tied)
    found = model_quantizers(quantize_model(model, quantization_spec=QuantizationSpec().add("cat")))
    assert len([q for q in found.values() if q.range_policy != "current"]) == 2


def test_a_pool_passes_its_quantizer_on() -> None:
    x = keras.Input((8, 8, 3))
    y = layers.Conv2D(4, 1, name="a")(x)
    left = layers.Conv2D(2, 1, name="left")(y)
    right = layers.Conv2D(2, 1, name="right")(layers.MaxPooling2D(1, name="pool")(y))
    plan = plan_quantization(keras.Model(x, layers.Add()([left, right])))
    (entry,) = [e for e in plan.by_kind("activation") if e.tensor == "a:0"]
    assert {c.layer for c in entry.consumers} == {"left", "pool"}
    assert not [e for e in plan.quantizers if e.tensor == "pool:0"]


def test_name_in_use_is_not_taken_twice() -> None:
    x = keras.Input((4,), name="x")
    y = layers.Dense(3, name="x_quantizer")(x)
    model = keras.Model(x, layers.Dense(2)(y))
    quantized = quantize_model(model)
    names = [layer.name for layer in quantized.layers]
    assert len(set(names)) == len(names)


def test_a_quantized_model_is_not_quantized_twice(model: keras.Model) -> None:
    once = quantize_model(model)
    twice = quantize_model(once)
    assert set(model_quantizers(twice)) == set(model_quantizers(once))
    x = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)
    np.testing.assert_array_equal(twice(x), once(x))


def test_hand_quantized_tensor_gets_no_second_quantizer() -> None:
    x = keras.Input((8, 8, 3), name="x")
    y = TensorQuantizer(name="mine", num_bits=4)(layers.Conv2D(3, 1, name="first")(x))
    y = layers.Conv2D(2, 1, name="second")(layers.MaxPooling2D(name="pool")(y))
    found = model_quantizers(quantize_model(keras.Model(x, y)))
    assert set(found) == {
        "mine",
        "x_quantizer",
        "first_kernel_quantizer",
        "second_kernel_quantizer",
    }
    assert found["mine"].num_bits == 4


def test_apply_plan_refuses_plan_of_another_model(model: keras.Model) -> None:
    plan = plan_quantization(model)
    x = keras.Input((8, 8, 3))
    other = keras.Model(x, layers.Conv2D(2, 3, name="conv_z")(x))
    with pytest.raises(PlanError, match="does not have"):
        apply_plan(other, plan)


def test_plan_leaves_layers_without_effect_on_the_outputs() -> None:
    x = keras.Input((4,), name="x")
    first = layers.Dense(4, activation="relu", name="first")(x)
    inner = keras.Model(x, [first, layers.Dense(3, name="unused")(first)], name="inner")
    y = keras.Input((4,), name="y")
    model = keras.Model(y, layers.Dense(2, name="last")(inner(y)[0]))
    plan = plan_quantization(model, custom_qdq_cases="auto")
    assert set(plan.wrapped) == {"first", "last"}
    (left,) = (skipped for skipped in plan.skipped if skipped.layer == "unused")
    assert left.detail == "no output of the model depends on it"
