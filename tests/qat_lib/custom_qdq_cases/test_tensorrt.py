"""TensorRTQDQCase: the exact placement for each pattern, from the plan alone."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras import layers

from qat_lib import QuantizationPlan, QuantizationSpec, TensorRTQDQCase, plan_quantization

SHAPE = (8, 8, 4)


def conv(x: Any, name: str, filters: int = 4, kernel: int = 3, **options: Any) -> Any:
    return layers.Conv2D(filters, kernel, padding="same", name=name, **options)(x)


def conv_bn(x: Any, name: str, *, relu: bool = False, **options: Any) -> Any:
    x = layers.BatchNormalization(name=f"{name}_bn")(conv(x, name, **options))
    return layers.ReLU(name=f"{name}_relu")(x) if relu else x


def head(x: Any) -> Any:
    return layers.Dense(5, name="head")(layers.GlobalAveragePooling2D(name="gap")(x))


def model_of(build: Callable[[Any], Any]) -> keras.Model:
    """Return a model whose body reads a convolution ``stem``.

    ``build`` continues it.
    """
    x = keras.Input(SHAPE, name="x")
    return keras.Model(x, build(conv_bn(x, "stem", relu=True)))


def plan_of(model: keras.Model, spec: QuantizationSpec | None = None) -> QuantizationPlan:
    return plan_quantization(model, quantization_spec=spec, custom_qdq_cases=[TensorRTQDQCase()])


def tensors(plan: QuantizationPlan) -> set[str]:
    """Return the layers whose output tensors have a quantizer."""
    return {entry.tensor.removesuffix(":0") for entry in plan.by_kind("activation")}


def readers(plan: QuantizationPlan, tensor: str) -> set[str]:
    """Return who reads the quantized tensor, as ``layer[input]``."""
    (entry,) = [e for e in plan.by_kind("activation") if e.tensor == f"{tensor}:0"]
    return {f"{consumer.layer}[{consumer.input}]" for consumer in entry.consumers}


# Residual Adds.


def test_identity_residual_shares_quantizer_of_block() -> None:
    def block(x: Any) -> Any:
        y = conv_bn(conv_bn(x, "a", relu=True), "b")
        return head(layers.ReLU(name="out")(layers.Add(name="add")([x, y])))

    plan = plan_of(model_of(block))
    assert tensors(plan) == {"x", "stem_relu", "a_relu", "out", "gap"}
    assert readers(plan, "stem_relu") == {"a[0]", "add[0]"}


def test_projection_is_quantized_but_not_deeper_branch() -> None:
    def block(x: Any) -> Any:
        shortcut = conv_bn(x, "shortcut", kernel=1)
        y = conv_bn(conv_bn(x, "a", relu=True), "b")
        return head(layers.ReLU(name="out")(layers.Add(name="add")([y, shortcut])))

    plan = plan_of(model_of(block))
    assert readers(plan, "shortcut_bn") == {"add[1]"}
    assert "b_bn" not in tensors(plan)


def test_pre_activation_quantizes_shared_sum_once() -> None:
    def block(x: Any) -> Any:
        for i in range(2):
            pre = layers.ReLU(name=f"pre_relu_{i}")(layers.BatchNormalization(name=f"pre_{i}")(x))
            x = layers.Add(name=f"add_{i}")([x, conv(conv_bn(pre, f"a_{i}", relu=True), f"b_{i}")])
        return head(layers.ReLU(name="out")(layers.BatchNormalization(name="post")(x)))

    plan = plan_of(model_of(block))
    assert readers(plan, "stem_relu") == {"pre_0[0]", "add_0[0]"}
    assert readers(plan, "add_0") == {"pre_1[0]", "add_1[0]"}
    assert readers(plan, "add_1") == {"post[0]"}
    assert tensors(plan) == {
        *(
            "x",
            "stem_relu",
            "pre_relu_0",
            "a_0_relu",
            "add_0",
            "pre_relu_1",
            "a_1_relu",
            "add_1",
            "out",
            "gap",
        )
    }


def test_dropout_and_layer_scale_belong_to_branch() -> None:
    def block(x: Any) -> Any:
        y = layers.Rescaling(0.2, name="scale")(conv_bn(x, "a"))
        y = layers.Dropout(0.2, noise_shape=(None, 1, 1, 1), name="drop")(y)
        return head(layers.Add(name="add")([y, x]))

    plan = plan_of(model_of(block))
    assert tensors(plan) == {"x", "stem_relu", "add", "gap"}
    assert readers(plan, "stem_relu") == {"a[0]", "add[1]"}


def test_a_scaled_sum_of_bare_operations() -> None:
    plan = plan_of(model_of(lambda x: head(conv(x + 0.5 * conv(x, "a"), "b"))))
    (add,) = [layer for layer in tensors(plan) if layer.startswith("add")]
    assert tensors(plan) == {"x", "stem_relu", add, "b", "gap"}
    assert readers(plan, "stem_relu") == {"a[0]", f"{add}[0]"}


def test_inception_resnets_scaled_sum() -> None:
    from keras.src.applications.inception_resnet_v2 import CustomScaleLayer

    def block(x: Any) -> Any:
        return head(layers.ReLU(name="out")(CustomScaleLayer(0.2, name="sum")([x, conv(x, "a")])))

    plan = plan_of(model_of(block))
    assert readers(plan, "stem_relu") == {"a[0]", "sum[0]"}
    assert tensors(plan) == {"x", "stem_relu", "out", "gap"}


def test_branch_with_other_readers_does_not_fuse() -> None:
    def block(x: Any) -> Any:
        y = conv(x, "a")
        return head(layers.Add(name="add")([x, y]) + conv(y, "b"))

    plan = plan_of(model_of(block))
    assert readers(plan, "stem_relu") == {"a[0]", "add[0]"}
    assert readers(plan, "a") == {"add[1]", "b[0]"}


def test_sum_without_convolution_quantizes_both_inputs() -> None:
    def block(x: Any) -> Any:
        left = layers.AveragePooling2D(3, 1, "same", name="left")(x)
        right = layers.AveragePooling2D(3, 1, "same", name="right")(x)
        return head(layers.Add(name="add")([left, right]))

    assert tensors(plan_of(model_of(block))) == {"x", "stem_relu", "left", "right", "add", "gap"}


def test_depthwise_convolution_with_swish_takes_no_sum() -> None:
    def block(activation: str) -> Callable[[Any], Any]:
        def build(x: Any) -> Any:
            y = layers.DepthwiseConv2D(3, padding="same", name="depthwise")(x)
            y = layers.Activation(activation, name="act")(y)
            return head(layers.Add(name="add")([x, y]))

        return build

    assert "act" in tensors(plan_of(model_of(block("swish"))))
    assert "act" not in tensors(plan_of(model_of(block("relu"))))


@pytest.mark.parametrize(
    ("activation", "fuses"), [("gelu", True), ("swish", True), ("sigmoid", False), ("tanh", False)]
)
def test_activations_that_kernel_takes_before_sum(activation: str, fuses: bool) -> None:
    plan = plan_of(
        model_of(lambda x: head(layers.Add(name="add")([x, conv(x, "a", activation=activation)])))
    )
    assert ("a" not in tensors(plan)) == fuses


def test_sum_of_different_shapes_stays_float() -> None:
    def block(x: Any) -> Any:
        bias = layers.GlobalAveragePooling2D(keepdims=True, name="mean")(x)
        return head(layers.Add(name="add")([conv(x, "a"), conv(bias, "b", kernel=1)]))

    plan = plan_of(model_of(block))
    assert not {consumer.layer for e in plan.quantizers for consumer in e.consumers} & {"add"}


def test_three_summands_leave_one_alone() -> None:
    def block(x: Any) -> Any:
        y = conv(conv(x, "b"), "c")
        return head(layers.Add(name="add")([x, conv(x, "a"), y]))

    plan = plan_of(model_of(block))
    assert readers(plan, "stem_relu") == {"a[0]", "b[0]", "add[0]"}
    assert readers(plan, "a") == {"add[1]"}
    assert "c" not in tensors(plan)


# What float readers do to a stage of residual blocks.


def stage(x: Any, count: int = 3) -> Any:
    for i in range(count):
        x = layers.Add(name=f"add_{i}")([x, conv(x, f"a_{i}")])
    return x


def test_stage_ending_in_output_stays_int8() -> None:
    plan = plan_of(model_of(stage))
    assert tensors(plan) == {"x", "stem_relu", "add_0", "add_1"}
    assert readers(plan, "add_1") == {"a_2[0]", "add_2[0]"}


def test_residual_of_float_sum_is_not_quantized() -> None:
    def block(x: Any) -> Any:
        return layers.Add(name="add")([conv(x, "shortcut", kernel=1), conv(conv(x, "a"), "b")])

    assert tensors(plan_of(model_of(block))) == {"x", "stem_relu", "a"}


@pytest.mark.parametrize("activation", ["gelu", "sigmoid"])
def test_a_sum_that_a_float_activation_reads(activation: str) -> None:
    """The activation is outside the Add's kernel: float output, shared residual."""

    def block(x: Any) -> Any:
        y = layers.Add(name="add")([x, conv(x, "a")])
        return head(conv(layers.Activation(activation, name="act")(y), "b"))

    plan = plan_of(model_of(block))
    assert tensors(plan) == {"x", "stem_relu", "act", "b", "gap"}
    assert readers(plan, "stem_relu") == {"a[0]", "add[0]"}


# Layer normalization and attention.


def test_a_convnext_block() -> None:
    def block(x: Any) -> Any:
        for i in range(2):
            y = layers.LayerNormalization(name=f"ln_{i}")(
                conv(x, f"depthwise_{i}", kernel=7, groups=4)
            )
            y = layers.Dense(16, activation="gelu", name=f"up_{i}")(y)
            x = layers.Add(name=f"add_{i}")([x, layers.Dense(4, name=f"down_{i}")(y)])
        x = layers.LayerNormalization(name="post")(layers.GlobalAveragePooling2D(name="gap")(x))
        return layers.Dense(5, name="head")(x)

    plan = plan_of(model_of(block))
    blocks = [f"{name}_{i}" for i in range(2) for name in ("depthwise", "ln", "up", "add")]
    assert tensors(plan) == {"x", "stem_relu", *blocks, "gap", "post"}
    assert readers(plan, "depthwise_0") == {"ln_0[0]"}
    assert readers(plan, "add_0") == {"depthwise_1[0]", "add_1[0]"}


def test_normalization_behind_float_keeps_float_input() -> None:
    def block(x: Any) -> Any:
        y = layers.Activation("sigmoid", name="gate")(conv(x, "a"))
        return head(conv(layers.LayerNormalization(name="ln")(y), "b"))

    assert tensors(plan_of(model_of(block))) == {"x", "stem_relu", "ln", "b", "gap"}


def test_normalization_beside_float_reader_keeps_float_input() -> None:
    def block(x: Any) -> list[Any]:
        y = conv(x, "a")
        return [y, head(conv(layers.LayerNormalization(name="ln")(y), "b"))]

    assert "a" not in tensors(plan_of(model_of(block)))


def test_a_transformer_block() -> None:
    x = keras.Input((6, 8), name="x")
    y = layers.Dense(8, name="embed")(x)
    normed = layers.LayerNormalization(name="ln_1")(y)
    attention = layers.MultiHeadAttention(2, 4, name="attention")(normed, normed)
    y = layers.Add(name="add_1")([y, attention])
    hidden = layers.Dense(16, activation="gelu", name="up")(
        layers.LayerNormalization(name="ln_2")(y)
    )
    y = layers.Add(name="add_2")([y, layers.Dense(8, name="down")(hidden)])
    y = layers.LayerNormalization(name="ln_3")(y)
    plan = plan_of(keras.Model(x, layers.Dense(3, name="head")(y)))
    assert tensors(plan) == {"x", "embed", "ln_1", "add_1", "ln_2", "up", "add_2", "ln_3"}
    assert readers(plan, "embed") == {"ln_1[0]", "add_1[0]"}
    assert readers(plan, "ln_1") == {"attention[0]", "attention[1]"}
    assert readers(plan, "add_2") == {"ln_3[0]"}
    assert [entry.tensor for entry in plan.by_kind("internal")] == [
        "attention/attention_output_input"
    ]


# Gates.


def squeeze(x: Any) -> Any:
    y = layers.GlobalAveragePooling2D(keepdims=True, name="squeeze")(x)
    return conv(conv(y, "reduce", 2, 1, activation="relu"), "expand", 4, 1, activation="sigmoid")


@pytest.mark.parametrize(
    "merge", [lambda x, g: layers.Multiply(name="gate")([x, g]), lambda x, g: x * g]
)
def test_a_squeeze_and_excite_gate(merge: Callable[..., Any]) -> None:
    plan = plan_of(model_of(lambda x: head(conv(merge(x, squeeze(x)), "project", kernel=1))))
    (gate,) = [
        layer
        for layer in tensors(plan)
        if layer in ("gate", "multiply") or layer.startswith("multiply_")
    ]
    assert tensors(plan) == {
        "x",
        "stem_relu",
        "squeeze",
        "reduce",
        "expand",
        gate,
        "project",
        "gap",
    }
    assert readers(plan, "stem_relu") == {"squeeze[0]", f"{gate}[0]"}
    assert readers(plan, "expand") == {f"{gate}[1]"}


def test_gate_before_output_stays_float() -> None:
    plan = plan_of(model_of(lambda x: layers.Multiply(name="gate")([x, squeeze(x)])))
    assert tensors(plan) == {"x", "stem_relu", "squeeze", "reduce"}
    assert readers(plan, "stem_relu") == {"squeeze[0]"}


@pytest.mark.parametrize(
    "gate",
    [
        lambda y: layers.Multiply(name="swish")([y, layers.Activation("sigmoid", name="gate")(y)]),
        lambda y: y * keras.ops.sigmoid(y),
        lambda y: y * (layers.ReLU(6.0, name="six")(y + 3.0) * (1.0 / 6.0)),
        lambda y: layers.Activation("hard_swish", name="act")(y),
    ],
)
def test_self_gates_stay_in_kernel_before_them(gate: Callable[[Any], Any]) -> None:
    plan = plan_of(model_of(lambda x: head(conv(gate(conv_bn(x, "a")), "b"))))
    assert len(tensors(plan)) == 5  # x, the stem, the gate's output, b, the pool's output
    assert {"a_bn", "gate", "six"}.isdisjoint(tensors(plan))


# Concatenations and pools.


def test_branches_that_meet_share_one_range() -> None:
    def block(x: Any) -> Any:
        pooled = conv_bn(layers.AveragePooling2D(3, 1, "same", name="pool")(x), "c", relu=True)
        branches = [conv_bn(x, "a", relu=True), conv_bn(x, "b", relu=True), pooled]
        return head(conv(layers.Concatenate(name="concat")(branches), "next"))

    plan = plan_of(model_of(block))
    tied = [entry for entry in plan.by_kind("activation") if entry.group is not None]
    assert {entry.tensor for entry in tied} == {"a_relu:0", "b_relu:0", "c_relu:0", "concat:0"}
    assert len({entry.name for entry in tied}) == 1
    assert readers(plan, "stem_relu") == {"a[0]", "b[0]", "pool[0]"}


def test_dense_blocks_are_one_group() -> None:
    def block(x: Any) -> Any:
        for i in range(3):
            y = layers.ReLU(name=f"relu_{i}")(layers.BatchNormalization(name=f"bn_{i}")(x))
            x = layers.Concatenate(name=f"concat_{i}")([x, conv(y, f"conv_{i}")])
        return head(layers.ReLU(name="out")(layers.BatchNormalization(name="post")(x)))

    plan = plan_of(model_of(block))
    tied = {entry.tensor for entry in plan.by_kind("activation") if entry.group is not None}
    assert tied == {
        "stem_relu:0",
        *(f"{kind}_{i}:0" for kind in ("conv", "concat") for i in range(3)),
    }
    assert len({e.name for e in plan.by_kind("activation") if e.group is not None}) == 1


def test_concatenation_read_in_float_stays_float() -> None:
    def block(x: Any) -> Any:
        return layers.Activation("tanh")(
            layers.Concatenate(name="concat")([conv(x, "a"), conv(x, "b")])
        )

    assert tensors(plan_of(model_of(block))) == {"x", "stem_relu"}


def test_max_pools_pass_the_quantizer_on() -> None:
    def block(x: Any) -> Any:
        return head(conv(layers.MaxPooling2D(name="pool")(x), "a"))

    plan = plan_of(model_of(block))
    assert tensors(plan) == {"x", "pool", "a", "gap"}


def test_pooled_padded_and_convolved_tensor_shares_quantizer() -> None:
    def block(x: Any) -> Any:
        y = conv_bn(x, "a")
        padded = layers.ZeroPadding2D(name="pad")(y)
        pools = (
            layers.MaxPooling2D(3, 1, name="max")(padded),
            layers.AveragePooling2D(3, 1, name="mean")(padded),
        )
        branch = conv(layers.ReLU(name="relu")(y), "b")
        return head(layers.Concatenate(name="concat")([*pools, branch, y]))

    plan = plan_of(model_of(block))
    assert readers(plan, "a_bn") == {"pad[0]", "relu[0]", "concat[3]"}
    assert tensors(plan) == {"x", "stem_relu", "a_bn", "mean", "b", "concat", "gap"}


def test_forked_relus_share_the_quantizer_before_them() -> None:
    def block(x: Any) -> Any:
        y = conv_bn(x, "a")
        branches = [conv(layers.ReLU(name=f"relu_{i}")(y), f"b_{i}") for i in range(2)]
        return head(layers.Add(name="add")(branches))

    plan = plan_of(model_of(block))
    assert readers(plan, "a_bn") == {"relu_0[0]", "relu_1[0]"}
    assert {"relu_0", "relu_1"}.isdisjoint(tensors(plan))


def test_last_pool_is_quantized_only_for_head() -> None:
    with_head = plan_of(model_of(head))
    assert {"stem_relu", "gap"} <= tensors(with_head)
    without = plan_of(model_of(lambda x: layers.GlobalAveragePooling2D(name="gap")(x)))
    assert tensors(without) == {"x"}
    assert [s.reason for s in without.skipped if s.layer == "gap"] == ["excluded"]


def test_normalization_is_quantized_only_if_unfused() -> None:
    def block(x: Any) -> Any:
        y = layers.Concatenate(name="concat")([x, conv_bn(x, "a")])
        return head(conv(layers.BatchNormalization(name="free")(y), "b"))

    plan = plan_of(model_of(block))
    assert readers(plan, "concat") == {"free[0]"}
    assert "a" not in tensors(plan)
    assert "stem" not in tensors(plan)


# The model's start, other entries, and models of other shapes.


def test_the_first_quantizer_comes_after_the_preprocessing() -> None:
    x = keras.Input(SHAPE, name="x")
    y = layers.Normalization(mean=[0.5] * 4, variance=[0.2] * 4, name="normalization")(
        layers.Rescaling(1 / 255, name="rescaling")(x)
    )
    plan = plan_of(keras.Model(x, head(conv(layers.ZeroPadding2D(name="pad")(y), "a"))))
    assert tensors(plan) == {"normalization", "a", "gap"}


def test_float_convolution_takes_no_quantized_sum() -> None:
    def block(x: Any) -> Any:
        return head(layers.Add(name="add")([x, conv(x, "a")]))

    spec = QuantizationSpec().add("a", quantize_input=False, quantize_weight=False)
    assert tensors(plan_of(model_of(block), spec)) == {"x", "add", "gap"}
    assert [entry.name for entry in spec.layers] == ["a"]


def test_the_users_entry_for_a_sum_wins() -> None:
    model = model_of(lambda x: head(layers.Add(name="add")([x, conv(x, "a")])))
    plan = plan_of(model, QuantizationSpec().add("add", quantization_index=1))
    assert readers(plan, "a") == {"add[1]"}
    assert readers(plan, "stem_relu") == {"a[0]"}


def test_a_backbone_that_is_called_twice() -> None:
    x = keras.Input(SHAPE, name="inner")
    y = conv_bn(x, "stem", relu=True)
    backbone = keras.Model(
        x, layers.ReLU(name="out")(layers.Add(name="add")([y, conv(y, "a")])), name="backbone"
    )
    left, right = keras.Input(SHAPE, name="left"), keras.Input(SHAPE, name="right")
    both = layers.Concatenate(name="concat")([backbone(left), backbone(right)])
    plan = plan_of(keras.Model([left, right], head(conv(both, "next"))))
    assert {"stem_relu", "stem_relu@1"} <= {
        e.tensor.removesuffix(":0") for e in plan.by_kind("activation")
    }
    assert readers(plan, "stem_relu@1") == {"a@1[0]", "add@1[0]"}
    assert {e.tensor for e in plan.by_kind("activation") if e.group} == {
        "out:0",
        "out@1:0",
        "concat:0",
    }


def test_case_changes_nothing_that_it_is_given() -> None:
    model = model_of(lambda x: head(stage(x)))
    names = [layer.name for layer in model.layers]
    spec = QuantizationSpec()
    found = TensorRTQDQCase().case(model, spec)
    assert len(spec) == 0
    assert [layer.name for layer in model.layers] == names
    assert {entry.name: entry.quantization_index for entry in found.layers} == {
        **{f"add_{i}": (0,) for i in range(3)},
        "gap": (0,),
    }
    assert TensorRTQDQCase().info().startswith("Place Q/DQ")


def test_a_sum_with_a_size_left_open() -> None:
    x = keras.Input((6, 16), name="x")
    skip = layers.ReLU(name="skip")(layers.Dense(16, name="first")(x))
    main = layers.EinsumDense("abc,cd->abd", output_shape=(None, 16), name="main")(skip)
    total = layers.ReLU(name="active")(layers.Add(name="sum")([skip, main]))
    plan = plan_of(keras.Model(x, layers.Dense(3, name="last")(total)))
    assert readers(plan, "skip") == {"main[0]", "sum[0]"}


def test_sum_that_may_broadcast_stays_float() -> None:
    x = keras.Input((None, 16), name="x")
    one = layers.Dense(16, name="one")(
        layers.Reshape((1, 16), name="row")(keras.ops.mean(x, axis=1))
    )
    many = layers.Dense(16, name="many")(x)
    total = layers.ReLU(name="active")(layers.Add(name="sum")([one, many]))
    plan = plan_of(keras.Model(x, layers.Dense(3, name="last")(total)))
    assert not any("sum" in reader for tensor in tensors(plan) for reader in readers(plan, tensor))


# Float outputs.


def detector() -> keras.Model:
    """Return two heads of one shared tensor, joined, and an output behind a softmax."""
    x = keras.Input(SHAPE, name="x")
    y = conv_bn(x, "stem", relu=True)
    boxes, scores = conv(y, "boxes"), conv(conv_bn(y, "tower", relu=True), "scores")
    joined = layers.Concatenate(name="join")([layers.Reshape((-1, 4))(z) for z in (boxes, scores)])
    classes = layers.Softmax(name="softmax")(head(y))
    return keras.Model(x, [joined, classes])


def float_plan(model: keras.Model, spec: QuantizationSpec | None = None) -> QuantizationPlan:
    case = TensorRTQDQCase(float_outputs=True)
    return plan_quantization(model, quantization_spec=spec, custom_qdq_cases=[case])


def test_float_outputs_keep_last_layers_and_all_behind() -> None:
    plan = float_plan(detector())
    assert set(plan.wrapped) == {"stem", "tower", "gap", "head"}
    reasons = {skipped.layer: skipped.detail for skipped in plan.skipped}
    assert reasons["boxes"] == (
        "TensorRTQDQCase: layer boxes, a float output layer: no activation between it and the "
        "output join:0"
    )
    assert reasons["join"].endswith("layer join, behind the float output layer scores")
    assert {"boxes", "scores"} <= set(plan_of(detector()).wrapped)


def test_float_outputs_yield_to_the_spec() -> None:
    plan = float_plan(detector(), QuantizationSpec().add("boxes"))
    assert set(plan.wrapped) == {"stem", "boxes", "tower", "gap", "head"}


def test_float_outputs_leave_layers_that_others_read() -> None:
    """A feature map that is also an output, and an activation inside of the last layer."""
    x = keras.Input(SHAPE, name="x")
    features = conv(x, "features")
    scores = layers.Dense(2, activation="softmax", name="scores")(layers.Flatten()(features))
    assert set(float_plan(keras.Model(x, [features, scores])).wrapped) == {"features", "scores"}


class Head(layers.Layer):
    """A tower with an output convolution, and with another one behind that."""

    def __init__(self, *, deep: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.tower, self.boxes = layers.Conv2D(4, 3, padding="same"), layers.Conv2D(3, 1)
        self.refined = layers.Conv2D(3, 1) if deep else None

    def build(self, shape: Any) -> None:
        self.tower.build(shape)
        self.boxes.build((*shape[:-1], 4))
        if self.refined is not None:
            self.refined.build((*shape[:-1], 3))
        self.built = True

    def call(self, x: Any) -> Any:
        boxes = self.boxes(keras.ops.relu(self.tower(x)))
        if self.refined is None:
            return keras.ops.reshape(boxes, (-1, 3)) + 1.0
        return [boxes, self.refined(keras.ops.tanh(boxes)) + boxes]


@pytest.mark.parametrize(("deep", "last"), [(False, "boxes"), (True, "refined")])
def test_float_outputs_inside_a_composite(deep: bool, last: str) -> None:
    x = keras.Input(SHAPE, name="x")
    model = keras.Model(x, Head(deep=deep, name="head")(conv(x, "stem")))
    weights = {entry.tensor for entry in float_plan(model).by_kind("weight")}
    everything = {entry.tensor for entry in plan_of(model).by_kind("weight")}
    assert everything - weights == {f"head/{last}/kernel"}
    named = float_plan(model, QuantizationSpec().add("head"))
    assert {entry.tensor for entry in named.by_kind("weight")} == everything


def test_float_outputs_leave_a_composite_with_an_activation() -> None:
    x = keras.Input(SHAPE, name="x")
    scores = layers.ReLU()(Head(name="head")(conv(x, "stem")))
    model = keras.Model(x, scores)
    assert float_plan(model).by_kind("weight") == plan_of(model).by_kind("weight")


def test_float_outputs_of_a_shared_head() -> None:
    shared = layers.Dense(3, name="shared")
    x = keras.Input((6, 4), name="x")
    y = layers.Dense(4, activation="relu", name="body")(x)
    both = keras.Model(x, [shared(x), shared(y)])
    assert set(float_plan(both).wrapped) == {"body"}
    one = keras.Model(x, [shared(x), layers.ReLU()(shared(y))])
    assert set(float_plan(one).wrapped) == {"body", "shared"}
